"""The command line: parses, prints, exits. No physics; whatever is heavy is imported when needed.

Exit status: 0 done; 1 our fault; 2 the input is wrong; 3 a check that the user asked for did not
hold; 4 deadlock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simdp.results.result import Study
    from simdp.scenario import Scenario

app = typer.Typer(
    name="python -m simdp",
    help="Simulate data-parallel training: the numbers and the times.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

CHECK_FAILED, STOPPED = 3, 130


def run_command_line(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status; errors of the input are one line each."""
    from simdp.errors import ScenarioError, SimdpError

    if not (sys.argv[1:] if arguments is None else arguments):
        arguments = ["--help"]
    try:
        status = app(arguments, standalone_mode=False)
    except ScenarioError as error:
        for line in error.problems:
            _complain(line)
        return error.exit_status
    except SimdpError as error:
        _complain(str(error))
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # Typer's errors of usage; their base class is click's, which Typer may bring along itself.
        if not hasattr(error, "format_message"):
            raise
        _complain(error.format_message().replace("\n", " "))
        return 2
    if status == STOPPED:
        _complain("stopped")
    return status if isinstance(status, int) else 0


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def _say(renderable: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable, soft_wrap=True)


ScenarioPath = Annotated[Path, typer.Argument(help="A YAML file, or a saved result.json.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a dotted key before validation."),
]


def _load(path: Path, settings: list[str] | None) -> Scenario:
    from simdp.errors import ScenarioError
    from simdp.files import parse_yaml
    from simdp.scenario import load_scenario

    overrides = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ScenarioError(
                [f"--set {setting}: is not KEY=VALUE; write for example cluster.world_size=4."]
            )
        overrides[key] = parse_yaml(value, f"--set {key}")
    return load_scenario(path, overrides)


@app.command()
def run(
    scenario: ScenarioPath,
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every rank as well.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
    save_weights: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Store the trained weights.")
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Exit with 3 if a device's memory is too small.")
    ] = False,
) -> int:
    """Simulate a scenario: a summary here, result.json, trace.json and plots in a folder."""
    from simdp.errors import ScenarioError

    chosen = _load(scenario, settings)
    if save_weights is not None and (chosen.sweep or not chosen.numerics):
        why = "a sweep trains many models" if chosen.sweep else "numerics: false trains none"
        raise ScenarioError([f"--save-weights: {why}; leave it out, or --set what it needs."])
    study = _simulate(chosen, quiet)
    folder = out or Path("runs") / chosen.name
    study.scenario = chosen.resolved(folder)  # so that it loads again from there
    _write(study, folder, not no_plots, save_weights)
    if as_json:
        sys.stdout.write(study.to_json())
    elif not quiet:
        from simdp.reports import table

        _say(table.summary(study))
        if verbose:
            _say(table.ranks(study))
        _say(f"files in {folder}")
    return _check_fit(study, require_fit)


def _check_fit(study: Study, require_fit: bool) -> int:
    too_large = [p for p in study.points if p.metrics["fits_memory"] is False]
    for point in too_large:
        from simdp.reports import table

        peak = table.nbytes(max(point.metrics["peak_memory_bytes"]))
        where = f" at {point.set}" if point.set else ""
        _complain(f"warning: the model does not fit{where}: a rank needs {peak} of device memory.")
    return CHECK_FAILED if too_large and require_fit else 0


def _simulate(scenario: Scenario, silent: bool) -> Study:
    from simdp.studies.sweep import sweep

    with _progress_bar(scenario, silent) as progress:
        return sweep(scenario, progress=progress)


@contextmanager
def _progress_bar(scenario: Scenario, silent: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error that shows up once a run has taken a second."""
    if silent or not sys.stderr.isatty():
        yield None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import Progress

    totals = [
        point.workload.num_steps(point.cluster.world_size, point.base)
        for _, point in scenario.points()
    ]
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(scenario.name, total=sum(totals))
    begin = monotonic()

    def progress(point: int, steps: int) -> None:
        if not bar.live.is_started and monotonic() - begin > 1.0:
            bar.start()
        bar.update(task, completed=sum(totals[:point]) + steps)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


def _write(study: Study, folder: Path, plots: bool, weights: Path | None) -> None:
    """Write every file of a run, or none."""
    from contextlib import ExitStack

    from simdp.files import put_npz, whole_files
    from simdp.reports import chrome_trace

    with ExitStack() as stack:
        if weights is not None:
            add = stack.enter_context(whole_files(weights.parent))
            add(weights.name, partial(put_npz, study.points[0].weights()))
        add = stack.enter_context(whole_files(folder))
        add("result.json", lambda stream: _put(stream, study.to_json()))
        add("trace.json", lambda stream: _put(stream, chrome_trace.write(study.points[-1])))
        if plots:
            from simdp.reports.plots import fitting, render

            for kind in fitting(study):
                add(f"{kind}.png", partial(render, study, kind))


def _put(stream: Any, text: str) -> None:
    stream.write(text.encode())


@app.command()
def check(
    scenarios: Annotated[list[Path], typer.Argument(help="YAML files.")],
    settings: Overrides = None,
) -> int:
    """Validate scenarios, and prove their collectives, without running them."""
    from simdp.engine.simulate import prove_plans
    from simdp.errors import ScenarioError

    problems = []
    for path in scenarios:
        try:
            points = _load(path, settings).points()
            for _, point in points:
                prove_plans(point)
            print(f"{path}: valid, {len(points)} point{'s' if len(points) > 1 else ''}")
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)
    return 0


@app.command(name="list")
def list_kinds(
    family: Annotated[str | None, typer.Argument(help="One family; all if left out.")] = None,
) -> int:
    """List every kind of a family, and the catalogue."""
    from simdp.errors import ScenarioError, unknown_name
    from simdp.reports import table
    from simdp.studies.families import families

    known = families()
    if family is not None and family not in known:
        raise ScenarioError([unknown_name("family", family, sorted(known))])
    _say(table.kinds({family: known[family]} if family else known))
    return 0


@app.command()
def collective(
    name: Annotated[str, typer.Argument(metavar="COLLECTIVE", help="For example all_reduce.")],
    cluster: Annotated[Path, typer.Option(help="A scenario, whose cluster is taken.")],
    algorithm: Annotated[
        list[str] | None,
        typer.Option(help="ring, or {kind: ring, slices: 4}; may be repeated [auto]."),
    ] = None,
    world_size: Annotated[
        str | None, typer.Option(help="8, or 2,4,8, or 2:64 by doubling [the cluster's].")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="FIRST:LAST:FACTOR, or one size [1KiB:1GiB:2].")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="mod 8 or div 8: process groups, all at once."),
    ] = None,
    root: Annotated[int, typer.Option(help="For broadcast, reduce, scatter and gather.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="As in nccl-tests [float].")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="LOG", help="What nccl-tests measured.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for files.")] = Path("runs/collective"),
    as_json: Annotated[bool, typer.Option("--json", help="Print collective.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
) -> int:
    """Time a collective by itself: a table as nccl-tests prints it, and plots in a folder."""
    from simdp.files import parse_yaml, whole_files
    from simdp.studies.collective_request import Request, answer

    algorithms = [parse_yaml(text, f"--algorithm {text}") for text in algorithm or []]
    study = answer(
        Request(name, cluster, algorithms, world_size, sizes, root, dtype, against, split)
    )
    with whole_files(out) as add:
        add("collective.json", lambda stream: _put(stream, study.to_json()))
        if not no_plots:
            from simdp.reports.plots import fitting, render

            for kind in fitting(study):
                add(f"{kind}.png", partial(render, study, kind))
    if as_json:
        sys.stdout.write(study.to_json())
    elif not quiet:
        from simdp.reports import collective_table

        _say(collective_table.tables(study))
        _say(f"files in {out}")
    return 0


@app.command()
def gallery(
    scenarios: Annotated[Path, typer.Option(help="Where the scenarios lie.")] = Path("scenarios"),
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("plots"),
) -> int:
    """Redraw the pictures of the README."""
    from simdp.studies.gallery import draw_gallery

    for path in draw_gallery(scenarios, out):
        print(path)
    return 0
