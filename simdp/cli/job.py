"""``job``: a job of days, many times."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import (
    GoOn,
    NoPlots,
    Overrides,
    ScenarioPath,
    Scheduler,
    Shared,
    StorePath,
    add_page,
    add_pictures,
    check_folder,
    earlier_files,
    load,
    progress_bar,
    reproduction,
    show,
    write_text,
)
from simdp.errors import ScenarioError, UnitError

if TYPE_CHECKING:
    from simdp.results.job import JobStudy


def job(
    scenario: ScenarioPath,
    settings: Overrides = None,
    runs: Annotated[int, typer.Option(min=1, max=10**6, help="Number of simulated runs.")] = 1000,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes that share the runs [all cores].")
    ] = None,
    scheduler: Scheduler = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help='A deadline, as "3 days".')
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME-job].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print job.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: NoPlots = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train through the first run's failures, too.")
    ] = False,
    go_on: GoOn = False,
    store: StorePath = None,
) -> int:
    """Simulate a job of days with its failures, many times: completion time and lost time."""
    from simdp.engine import threads
    from simdp.studies import job as study

    chosen, deadline = load(scenario, settings), _deadline(until)
    folder = out or Path("runs") / f"{chosen.name}-job"
    check_folder(folder, "job.json", scenario)
    shared = Shared(workers, scheduler, go_on, store)
    with shared.store(out, quiet) as kept, progress_bar(chosen.name, quiet) as progress:
        jobs = study.job(
            chosen,
            runs=runs,
            workers=workers or threads.available(),
            scheduler=scheduler,
            until=deadline,
            progress=progress,
            store=kept,
            train=train,
        )
    jobs.scenario = chosen.resolved(folder)  # so that it loads again from there
    options = {"--runs": str(runs), **({"--until": until} if until else {})}
    _write(jobs, folder, None if no_plots else reproduction("job", scenario, settings, options))
    if as_json:
        sys.stdout.write(jobs.to_json())
    elif not quiet:
        from simdp.reports import job_table

        show(job_table.table(jobs))
        show(f"files in {folder}")
    return 0


def _write(jobs: JobStudy, folder: Path, drawn: list[str] | None) -> None:
    """Write every file of an ensemble, or none; with the command line, the page and pictures."""
    from simdp.files import put_npz, whole_files

    weights = "weights.npz", "weights-[0-9]*.npz"
    with whole_files(folder, earlier_files(folder, *weights)) as add:
        add("job.json", lambda stream: write_text(stream, jobs.to_json()))
        for number, point in enumerate(jobs.points):
            if point.trained is not None:
                name = f"weights-{number}.npz" if jobs.scenario["sweep"] else "weights.npz"
                add(name, partial(put_npz, point.trained.weights()))
        if drawn is not None:
            add_page(add, jobs, command=drawn)
            add_pictures(add, jobs)


def _deadline(until: str | None) -> float | None:
    """Read ``--until``."""
    from simdp.units import parse

    if until is None:
        return None
    try:
        seconds = parse(until, "time", "3 days")
    except UnitError as error:
        raise ScenarioError(f"--until: {error}") from None
    if not 0 < seconds < float("inf"):
        raise ScenarioError(f'--until: {until} is out of range; write for example "3 days".')
    return seconds
