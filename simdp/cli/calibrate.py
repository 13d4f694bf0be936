"""``calibrate``: measured files in, a machine's entry out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.commands import COMMANDS, epilog
from simdp.cli.common import add_pictures, check_folder, earlier_files, show, warn, write_text
from simdp.cli.completion import SCENARIOS
from simdp.errors import ScenarioError

if TYPE_CHECKING:
    from simdp.results.calibration import CalibrationStudy, StepCalibration

commands = typer.Typer(
    help=COMMANDS["calibrate"].summary,
    epilog=COMMANDS["calibrate"].epilog,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str | None, typer.Option(help="Of the machine.")]
Wanted = Annotated[
    Path | None,
    typer.Option(
        "--for",
        metavar="SCENARIO",
        help="Scenario to predict: lists the measurements that would reduce its uncertainty most.",
        autocompletion=SCENARIOS,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print calibration.json, only.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
NoPlots = Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")]

FOLDER = Path("runs/calibration")


@commands.command(
    name="nccl-tests",
    epilog=epilog(
        "calibrate nccl-tests one_node.log two_nodes.log --nodes 1,2 --link nvlink4",
    ),
)
def nccl_tests(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Logs of nccl-tests, or CSV.")
    ],
    nodes: Annotated[
        str | None,
        typer.Option(help="2, or 1,2,8: nodes of the files [read from the logs]."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="A catalogue name, to make the entry self-contained.")
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Inside a node: a catalogue name, or a bandwidth.")
    ] = None,
    inter_link: Annotated[
        str | None, typer.Option(help="A network card: a catalogue name, or a bandwidth.")
    ] = None,
    links_per_node: Annotated[int, typer.Option(help="Network cards of a node.")] = 1,
    cost: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Known settings: {algorithms: [ring, nvls]}."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A constant to fit; may be repeated [all].")
    ] = None,
    wanted: Wanted = None,
    name: Name = None,
    out: Out = FOLDER,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
) -> int:
    """Fit the constants of cost nccl to tables of nccl-tests."""
    from simdp.files import parse_yaml
    from simdp.studies.calibrate.nccl_tests import calibrate_nccl_tests
    from simdp.studies.variants import parse_counts

    check_folder(out, "calibration.json", *files)
    calibration = calibrate_nccl_tests(
        files,
        nodes=parse_counts("--nodes", nodes) if nodes else (),
        name=name or files[0].stem,
        device=device,
        link=link,
        inter_link=inter_link,
        links_per_node=links_per_node,
        cost=parse_yaml(cost, "--cost") if cost else None,
        only=only or (),
        wanted=wanted,
    )
    return _show(calibration, out, as_json, quiet, not no_plots)


@commands.command(
    epilog=epilog(
        "calibrate ddp measured.yaml",
        "calibrate ddp measured.yaml --fit collectives.cost.hop.inter=1us:1ms",
    )
)
def ddp(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Scenarios with measured:, or folders of them."),
    ],
    fit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=LOW:HIGH]",
            help="A constant to fit, collectives.cost.hop.inter=1us:1ms; may be repeated.",
        ),
    ] = None,
    wanted: Wanted = None,
    name: Name = None,
    out: Out = FOLDER,
    as_json: AsJson = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
) -> int:
    """Fit constants to measured steps: the points with role: calibration."""
    from simdp.studies.calibrate.ddp import calibrate_ddp

    check_folder(out, "calibration.json", *files)
    calibration = calibrate_ddp(files, fit or (), name, wanted)
    return _show(calibration, out, as_json, quiet, not no_plots)


@commands.command(epilog=epilog("calibrate baseline measured.yaml --ranks 2"))
def baseline(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Scenarios with measured:, or folders of them."),
    ],
    ranks: Annotated[
        int | None, typer.Option(help="Solve from the steps of so many ranks [the fewest].")
    ] = None,
    weigh: Annotated[
        bool, typer.Option("--weigh", help="Weigh each against the step by the device's figures.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Solve the one-device steps that explain measured steps of several ranks."""
    from simdp.results.metrics import to_json
    from simdp.studies.calibrate.steps import solve_baselines

    baselines = solve_baselines(files, ranks, weigh)
    if as_json:
        sys.stdout.write(to_json(baselines))
    elif not quiet:
        from simdp.reports import validation_table

        show(validation_table.baselines(baselines))
    return 0


@commands.command(epilog=epilog("calibrate rows runs.csv", "calibrate rows runs.tsv --out mine"))
def rows(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or TSV with a row for each measured run.")
    ],
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="measured|roofline",
            help="From rows of one GPU, or by data sheet [measured if there are such rows].",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Of the figures [the column source, or the file].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for scenarios.")] = Path("runs/measured"),
    force: Annotated[bool, typer.Option("--force", help="Write over files.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, only.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Make scenarios with measured: from a table of measurements."""
    from functools import partial

    from simdp.files import check_outputs, whole_files
    from simdp.studies.calibrate.rows import scenarios_from_table

    check_outputs(out / "scenario.yaml")
    written = scenarios_from_table(table, out, compute, source)
    there = [path for made in written.scenarios if (path := out / made.file).exists()]
    if there and not force:
        raise ScenarioError(
            [f"{file}: is there already; add --force, or --out another folder." for file in there]
        )
    with whole_files(out) as add:
        for made in written.scenarios:
            add(made.file, partial(write_text, text=made.text))
    for row in written.left_out:
        warn(f"{table}: line {row.line} is left out: {row.reason}")
    if written.unused_columns:
        warn(f"{table}: columns without a meaning: {', '.join(written.unused_columns)}")
    if as_json:
        sys.stdout.write(written.to_json())
    elif not quiet:
        from simdp.reports import validation_table

        show(validation_table.written_scenarios(written))
        show(f"files in {out}; next: python -m simdp validate {out}")
    return 0


def _show(
    calibration: CalibrationStudy | StepCalibration,
    out: Path,
    as_json: bool,
    quiet: bool,
    plots: bool,
) -> int:
    """Write the entry and its files, and print the fit."""
    from simdp.files import whole_files

    with whole_files(out, earlier_files(out)) as add:
        add(f"{calibration.name}.yaml", lambda stream: write_text(stream, calibration.entry))
        add("calibration.json", lambda stream: write_text(stream, calibration.to_json()))
        if plots:
            add_pictures(add, calibration)
    if as_json:
        sys.stdout.write(calibration.to_json())
    elif not quiet:
        from simdp.reports import validation_table

        show(validation_table.tables(calibration))
        show(f"files in {out}; use it as cluster.machine: {out / calibration.name}.yaml")
    return 0
