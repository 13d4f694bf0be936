"""``run`` and ``check``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from simdp.cli.common import (
    CHECK_FAILED,
    GoOn,
    NoPlots,
    Overrides,
    ScenarioPath,
    Scheduler,
    Shared,
    StorePath,
    TablePath,
    Workers,
    add_page,
    add_pictures,
    check_folder,
    earlier_files,
    load,
    progress_bar,
    reproduction,
    show,
    table_writer,
    warn,
    write_text,
)
from simdp.cli.completion import DEVICES, SCENARIOS
from simdp.errors import ScenarioError, unknown_name

if TYPE_CHECKING:
    from simdp.engine.clocks.clock import Fabric
    from simdp.results.result import Advice, Study
    from simdp.scenario.root import Scenario
    from simdp.studies.store import Store

    Kept = AbstractContextManager[Store | None]


class RunPart(NamedTuple):
    """A part of a run: its last step, its start state, and whether it saves its state."""

    stop_after: int | None
    resume: Path | None
    keeps_state: bool


MAX_WARNINGS = 10
"""Points of which is said, one by one, that the model does not fit."""

WHOLE = RunPart(None, None, False)

FabricName = Annotated[
    str, typer.Option(metavar="auto|event|vector", help="Simulator of the network.")
]
StopAfter = Annotated[
    int | None, typer.Option(metavar="STEP", help="Stop after this step of the run.")
]
SaveState = Annotated[
    Path | None, typer.Option(metavar="FILE.npz", help="Save the state, to resume from.")
]
Resume = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Resume from a saved state.")]


Gpus = Annotated[int | None, typer.Option(min=1, help="Short for --set cluster.world_size.")]
DeviceName = Annotated[
    str | None, typer.Option(help="Short for --set cluster.device.", autocompletion=DEVICES)
]

Traces = Annotated[
    bool, typer.Option("--traces", help="Write a trace per rank as torch's profiler does.")
]
Ranks = Annotated[
    str | None, typer.Option(metavar="0-7,12", help="Ranks that --traces is for [all].")
]


def run(
    scenario: ScenarioPath,
    settings: Overrides = None,
    gpus: Gpus = None,
    device: DeviceName = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every rank and batch as well.")
    ] = False,
    no_plots: NoPlots = False,
    save_weights: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Store the trained weights.")
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Exit with 3 if a device's memory is too small.")
    ] = False,
    fabric: FabricName = "auto",
    stop_after: StopAfter = None,
    save_state: SaveState = None,
    resume: Resume = None,
    traces: Traces = False,
    ranks: Ranks = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    go_on: GoOn = False,
    store: StorePath = None,
    table: TablePath = None,
) -> int:
    """Simulate a scenario: a summary here, result.json, report.html and more in a folder."""
    from simdp.files import check_outputs

    settings = _settings(settings, gpus, device)
    chosen = load(scenario, settings)
    folder = out or Path("runs") / chosen.name
    state_options = {"--stop-after": stop_after, "--save-state": save_state, "--resume": resume}
    shared = Shared(workers, scheduler, go_on, store)
    _refuse_unsuited(chosen, save_weights is not None, state_options, shared.given)
    listed = _traced_ranks(chosen, traces, ranks)
    part = RunPart(stop_after, resume, save_state is not None)
    write_table = table_writer(table)
    check_folder(folder, "result.json", scenario)
    check_outputs(save_weights, save_state)
    check_outputs(folder / "traces/rank0" if traces else None)
    kept: Kept = shared.store(out, quiet) if chosen.sweep else nullcontext()
    with kept as points, progress_bar(chosen.name, quiet) as progress:
        study = _simulate(chosen, fabric, part, shared, points, progress)
    study.scenario = chosen.resolved(folder)  # so that it loads again from there
    advice = None if as_json or quiet else _advice(chosen, study, part)
    page_options = {"command": _command(scenario, settings, fabric, part), "advice": advice}
    _write(study, folder, None if no_plots else page_options, save_weights, save_state)
    write_table(study.columns)
    if listed is not None:
        study.points[-1].save_traces(folder / "traces", listed)
    if as_json:
        sys.stdout.write(study.to_json())
    elif not quiet:
        _say(chosen, study, advice, verbose, folder)
    return _say_failed(study) or _check_fit(chosen, study, require_fit)


def _settings(settings: list[str] | None, gpus: int | None, device: str | None) -> list[str]:
    """Add ``--gpus`` and ``--device`` to ``--set``."""
    named = {"cluster.world_size": gpus, "cluster.device": device}
    given = [f"{key}={value}" for key, value in named.items() if value is not None]
    return [*(settings or []), *given]


def _command(scenario: Path, settings: list[str] | None, fabric: str, part: RunPart) -> list[str]:
    """The command line, reduced to the options that affect results."""
    options = {"--fabric": fabric, "--stop-after": part.stop_after, "--resume": part.resume}
    given = {name: str(value) for name, value in options.items() if value not in (None, "auto")}
    return reproduction("run", scenario, settings, given)


def _refuse_unsuited(
    scenario: Scenario, weights: bool, state_options: Mapping[str, object], shared: list[str]
) -> None:
    """Refuse options that only a sweep has, or only a run without one."""
    part = [option for option, value in state_options.items() if value is not None]
    if weights and (scenario.sweep or not scenario.numerics):
        why = "a sweep trains many models" if scenario.sweep else "numerics: false trains none"
        raise ScenarioError(f"--save-weights: {why}; leave it out, or --set what it needs.")
    if part and scenario.sweep:
        raise ScenarioError(f"{part[0]}: a sweep has many runs; leave it out, or --set sweep={{}}.")
    if shared and not scenario.sweep:
        instead = "see --save-state and --resume" if shared[0] == "--continue" else "leave it out"
        raise ScenarioError(f"{shared[0]}: a run without a sweep has no points; {instead}.")


def _traced_ranks(scenario: Scenario, traces: bool, ranks: str | None) -> list[int] | None:
    """Parse the ranks to trace before simulating; None for no rank."""
    from simdp.cli.common import ranks_of
    from simdp.reports.rank_traces import chosen_ranks

    if not traces:
        if ranks is not None:
            raise ScenarioError("--ranks: says whose --traces to write; add it, or leave it out.")
        return None
    _, point = scenario.points()[-1]
    return chosen_ranks(point.cluster.world_size, None if ranks is None else ranks_of(ranks))


def _advice(scenario: Scenario, study: Study, part: RunPart) -> Advice | None:
    """List ways to simulate a single run faster; nothing for a part of a run."""
    if scenario.sweep or part != WHOLE:
        return None
    from simdp.studies.advice import would_help

    return would_help(scenario, study.points[0])


def _say(
    scenario: Scenario, study: Study, advice: Advice | None, verbose: bool, folder: Path
) -> None:
    """Print the summary; with ``verbose`` every rank, the slowest ones, and batches."""
    from simdp.reports import table

    show(table.summary(study, advice, verbose))
    if verbose:
        show(table.ranks(study))
        if (slow := table.slowest(study)) is not None:
            show(slow)
        _say_batches(scenario)
    show(f"files in {folder}")


def _say_batches(scenario: Scenario) -> None:
    """Print which shapes each device computes on, at the last point."""
    from simdp.engine.samples import pieces
    from simdp.engine.simulate import rebalanced
    from simdp.reports.batch_table import MAX_RANKS, batch_table

    _, point = scenario.points()[-1]
    table = batch_table(pieces(rebalanced(point), MAX_RANKS), point.cluster.world_size)
    if table is not None:
        show(table)


def _check_fit(scenario: Scenario, study: Study, require_fit: bool) -> int:
    """Warn of points that do not fit; for the last one, list remedies."""
    from simdp.results.result import Result

    too_large = [
        (number, point)
        for number, point in enumerate(study.in_order())
        if isinstance(point, Result) and point.metrics.fits_memory is False
    ]
    if too_large:
        points = scenario.points()
    left_out = range(MAX_WARNINGS - 1, len(too_large) - 1)
    for place, (number, point) in enumerate(too_large):
        if place in left_out:
            continue
        from simdp.keys import short_key, written
        from simdp.studies.fits import fitting_settings_in_words, need_in_words

        _, alone = points[number]
        settings = [f"{short_key(key)} {written(value)}" for key, value in point.set.items()]
        where = f" at {', '.join(settings)}" if settings else ""
        more = fitting_settings_in_words(alone) if place == len(too_large) - 1 else ""
        needs = need_in_words(alone, point.metrics)
        warn(f"warning: the model does not fit{where}: {needs}{more}")
    if left_out:
        warn(f"warning: it does not fit at {len(left_out)} more points; see result.json")
    return CHECK_FAILED if too_large and require_fit else 0


def _simulate(
    scenario: Scenario,
    fabric: str,
    part: RunPart,
    shared: Shared,
    points: Store | None,
    progress: Callable[[int, int], None] | None,
) -> Study:
    from simdp.engine.clocks.clock import FABRICS
    from simdp.studies.sweep import sweep

    if fabric not in FABRICS:
        raise ScenarioError(f"--fabric: {unknown_name('fabric', fabric, FABRICS)}")
    return sweep(
        scenario,
        workers=shared.workers or 1,
        scheduler=shared.scheduler,
        fabric=cast("Fabric", fabric),
        progress=progress,
        store=points,
        **_kept(part),
    )


def _say_failed(study: Study) -> int:
    """Print the number of points without a result; the table and result.json hold the reasons."""
    if not study.failed:
        return 0
    number = len(study.points) + len(study.failed)
    warn(f"{len(study.failed)} of {number} points failed: {study.failed[0].problems[0]}")
    return max(point.exit_status for point in study.failed)


def _kept(part: RunPart) -> dict[str, Any]:
    """Arguments of `simulate` for a part of a run; none for a whole run."""
    arguments: dict[str, Any] = {}
    if part.stop_after is not None:
        arguments["stop_after"] = part.stop_after
    if part.resume is not None:
        from simdp.engine.state import State

        arguments["resume"] = State.load(part.resume)
    if part.keeps_state:
        arguments["keep_state"] = True
    return arguments


def _write(
    study: Study,
    folder: Path,
    drawn: dict[str, Any] | None,
    weights: Path | None,
    state: Path | None,
) -> None:
    """Write all files of a run, or none; also the plots and extra sections of the page."""
    from contextlib import ExitStack

    from simdp.files import put_npz, whole_files
    from simdp.reports import chrome_trace

    with ExitStack() as stack:
        if weights is not None:
            add = stack.enter_context(whole_files(weights.parent))
            add(weights.name, partial(put_npz, study.points[0].weights()))
        if state is not None:
            add = stack.enter_context(whole_files(state.parent))
            add(state.name, study.points[0].state.write)
        add = stack.enter_context(whole_files(folder, earlier_files(folder)))
        add("result.json", lambda stream: write_text(stream, study.to_json()))
        add("trace.json", lambda stream: write_text(stream, chrome_trace.write(study.points[-1])))
        if drawn is not None:
            add_page(add, study, **drawn)
            add_pictures(add, study)


def check(
    scenarios: Annotated[
        list[Path],
        typer.Argument(help="YAML files, or names of `list scenarios`.", autocompletion=SCENARIOS),
    ],
    settings: Overrides = None,
) -> int:
    """Validate scenarios, and prove their collectives, without running them."""
    from simdp.engine.simulate import prove_plans

    problems = []
    for path in scenarios:
        try:
            points = load(path, settings).points()
            for _, point in points:
                prove_plans(point)
            print(f"{path}: valid, {len(points)} point{'s' if len(points) > 1 else ''}")
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)
    return 0
