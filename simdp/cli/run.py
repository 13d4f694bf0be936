"""``run`` and ``check``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from simdp.cli.common import CHECK_FAILED, Overrides, ScenarioPath, complain, load, put, say
from simdp.cli.completion import SCENARIOS

if TYPE_CHECKING:
    from simdp.engine.clocks.clock import Fabric
    from simdp.results.result import Advice, Study
    from simdp.scenario import Scenario


class Part(NamedTuple):
    """A part of a run: where it stops, what it goes on from, and whether it keeps its state."""

    stop_after: int | None
    resume: Path | None
    keeps_state: bool


WHOLE = Part(None, None, False)


def run(
    scenario: ScenarioPath,
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every rank and batch as well.")
    ] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
    save_weights: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Store the trained weights.")
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Exit with 3 if a device's memory is too small.")
    ] = False,
    fabric: Annotated[
        str, typer.Option(metavar="auto|event|vector", help="Which clock plays it.")
    ] = "auto",
    stop_after: Annotated[
        int | None, typer.Option(metavar="STEP", help="Stop after so many steps of the run.")
    ] = None,
    save_state: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Store a state to go on from.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Go on from a state.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Take points of a sweep that are done already.")
    ] = False,
) -> int:
    """Simulate a scenario: a summary here, result.json, trace.json and plots in a folder."""
    chosen = load(scenario, settings)
    asked = {"--stop-after": stop_after, "--save-state": save_state, "--resume": resume}
    given = [option for option, value in asked.items() if value is not None]
    _refuse_unsuited(chosen, save_weights is not None, given, go_on)
    part = Part(stop_after, resume, save_state is not None)
    folder = out or Path("runs") / chosen.name
    study = _simulate(chosen, fabric, quiet, part, folder / "points", go_on)
    study.scenario = chosen.resolved(folder)  # so that it loads again from there
    _write(study, folder, not no_plots, save_weights, save_state)
    if as_json:
        sys.stdout.write(study.to_json())
    elif not quiet:
        from simdp.reports import table

        say(table.summary(study, _advice(chosen, study, part)))
        if verbose:
            say(table.ranks(study))
            _say_batches(chosen)
        say(f"files in {folder}")
    return _check_fit(chosen, study, require_fit)


def _refuse_unsuited(scenario: Scenario, weights: bool, part: list[str], go_on: bool) -> None:
    """Refuse options that only a sweep has, or only a run without one."""
    from simdp.errors import ScenarioError

    if weights and (scenario.sweep or not scenario.numerics):
        why = "a sweep trains many models" if scenario.sweep else "numerics: false trains none"
        raise ScenarioError([f"--save-weights: {why}; leave it out, or --set what it needs."])
    if part and scenario.sweep:
        raise ScenarioError(
            [f"{part[0]}: a sweep has many runs; leave it out, or --set sweep={{}}."]
        )
    if go_on and not scenario.sweep:
        raise ScenarioError(
            ["--continue: a run without a sweep has no points; see --save-state and --resume."]
        )


def _advice(scenario: Scenario, study: Study, part: Part) -> Advice | None:
    """What would make a single run faster; nothing of a part of one."""
    if scenario.sweep or part != WHOLE:
        return None
    from simdp.studies.advice import would_help

    return would_help(scenario, study.points[0])


def _say_batches(scenario: Scenario) -> None:
    """Print which shapes each device computes on, at the last point."""
    from simdp.engine.pieces import pieces
    from simdp.reports.batch_table import MAX_RANKS, batch_table

    _, point = scenario.points()[-1]
    table = batch_table(pieces(point, MAX_RANKS), point.cluster.world_size)
    if table is not None:
        say(table)


def _check_fit(scenario: Scenario, study: Study, require_fit: bool) -> int:
    """Warn of points that do not fit; of the last one, say what would."""
    too_large = [n for n, p in enumerate(study.points) if p.metrics["fits_memory"] is False]
    for number in too_large:
        from simdp.results.comparison import short_key, written
        from simdp.studies.what_fits import need_in_words, what_fits_in_words

        point = study.points[number]
        _, alone = scenario.points()[number]
        said = [f"{short_key(key)} {written(value)}" for key, value in point.set.items()]
        where = f" at {', '.join(said)}" if said else ""
        more = what_fits_in_words(alone) if number == too_large[-1] else ""
        needs = need_in_words(alone, point.metrics)
        complain(f"warning: the model does not fit{where}: {needs}{more}")
    return CHECK_FAILED if too_large and require_fit else 0


def _simulate(
    scenario: Scenario, fabric: str, silent: bool, part: Part, points: Path, go_on: bool
) -> Study:
    from simdp.engine.clocks.clock import FABRICS
    from simdp.errors import ScenarioError, unknown_name
    from simdp.studies.sweep import sweep

    if fabric not in FABRICS:
        raise ScenarioError([f"--fabric: {unknown_name('fabric', fabric, FABRICS)}"])

    options = {"fabric": cast("Fabric", fabric), **_kept(part)}
    if scenario.sweep:
        from simdp.studies.points import Points

        options["kept"] = kept = Points(points, go_on)
    with _progress_bar(scenario, silent) as progress:
        study = sweep(scenario, progress=progress, **options)
    if go_on and not silent:
        complain(f"{kept.num_found} of {len(study.points)} points were done already")
    return study


def _kept(part: Part) -> dict[str, Any]:
    """What `simulate` is to be told of a part of a run; nothing of a whole one."""
    found: dict[str, Any] = {}
    if part.stop_after is not None:
        found["stop_after"] = part.stop_after
    if part.resume is not None:
        from simdp.engine.state import State

        found["resume"] = State.load(part.resume)
    if part.keeps_state:
        found["keep_state"] = True
    return found


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


def _write(
    study: Study, folder: Path, plots: bool, weights: Path | None, state: Path | None
) -> None:
    """Write every file of a run, or none."""
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
        add = stack.enter_context(whole_files(folder))
        add("result.json", lambda stream: put(stream, study.to_json()))
        add("trace.json", lambda stream: put(stream, chrome_trace.write(study.points[-1])))
        if plots:
            from simdp.reports.plots import fitting, render

            for kind in fitting(study):
                add(f"{kind}.png", partial(render, study, kind))


def check(
    scenarios: Annotated[
        list[Path],
        typer.Argument(help="YAML files, or names of `list scenarios`.", autocompletion=SCENARIOS),
    ],
    settings: Overrides = None,
) -> int:
    """Validate scenarios, and prove their collectives, without running them."""
    from simdp.engine.simulate import prove_plans
    from simdp.errors import ScenarioError

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
