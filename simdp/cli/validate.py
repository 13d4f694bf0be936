"""``validate``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simdp.cli.common import (
    CHECK_FAILED,
    INVALID,
    GoOn,
    NoPlots,
    Scheduler,
    Shared,
    StorePath,
    add_page,
    check_folder,
    earlier_files,
    progress_bar,
    show,
    terminal_width,
    warn,
    write_text,
)
from simdp.cli.completion import LEFT_OUT, SCENARIOS
from simdp.errors import ScenarioError, UnitError, unknown_name

if TYPE_CHECKING:
    from simdp.results.validation import LeftOut, Validation

MaxError = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="10%: exit with 3 if a cluster's mean error is larger."),
]
Without = Annotated[
    str | None,
    typer.Option(
        "--leave-out",
        metavar="WHAT",
        help="model, kind, precision, nodes, scale, collective or cluster: predict each by the "
        "others.",
        autocompletion=LEFT_OUT,
    ),
]


def validate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Scenarios with measured:, or folders.", autocompletion=SCENARIOS
        ),
    ],
    max_error: MaxError = None,
    without: Without = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/validation].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print validation.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: NoPlots = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes that share the points [all cores]."),
    ] = None,
    scheduler: Scheduler = None,
    go_on: GoOn = False,
    store: StorePath = None,
) -> int:
    """Compare simulated with measured times: every point, and the errors of each cluster.

    Wrong points, and wrong files of a folder, are listed, and make the exit status 2.
    """
    from simdp.reports.validation import NO_TARGET

    folder = out or Path("runs/validation")
    check_folder(folder, "validation.json", *paths)
    limit = None if max_error is None else _share("--max-error", max_error)
    shared = Shared(workers, scheduler, go_on, store)
    with shared.store(out, quiet) as kept, progress_bar("validate", quiet) as progress:
        many = {"workers": workers, "scheduler": scheduler, "progress": progress, "store": kept}
        validation, left_out = _found(paths, without, many)
    times = any(part.role == "predicted" for part in (*validation.points, *validation.rows))
    if limit is not None and not times and validation.memory_error() is None:
        problem = "nothing is predicted; give points role: predicted, or leave it out."
        raise ScenarioError(
            [*(part.line for part in validation.not_compared), f"--max-error: {problem}"]
        )
    printed = validation if left_out is None else left_out
    target = NO_TARGET if limit is None else limit
    words = ["validate", *map(str, paths), *(["--leave-out", without] if without else [])]
    _write(folder, validation, left_out, target, None if no_plots else words)
    if as_json:
        sys.stdout.write(printed.to_json())
    elif not quiet:
        from simdp.reports import validation_table as tables

        width = terminal_width()
        if left_out is None:
            show(tables.validation_tables(validation, width))
        else:
            show(tables.fold_tables(left_out, width))
        show(f"files in {folder}")
    for part in validation.not_compared:
        warn(part.line)
    status = _check_errors(validation, limit)
    return INVALID if validation.not_compared else status


def _write(
    folder: Path,
    validation: Validation,
    left_out: LeftOut | None,
    target: float,
    command: list[str] | None,
) -> None:
    """Write the files, with the pictures and the page of a command; None: without them."""
    from simdp.files import whole_files
    from simdp.reports.validation_table import page, pictures

    written, shown = validation if left_out is None else left_out, dict[str, str]()
    with whole_files(folder, earlier_files(folder)) as add:
        add("validation.json", lambda stream: write_text(stream, written.to_json()))
        if command is not None:
            from simdp.reports.plots import render

            for picture in pictures(validation):
                shown[picture.file] = picture.shows
                add(picture.file, partial(render, picture.part, picture.kind))
            add_page(add, validation, command=command, target=target, left_out=left_out)
        text = page(validation, shown, target, left_out)
        add("report.md", lambda stream: write_text(stream, text))


def _found(
    paths: list[Path], without: str | None, many: dict[str, Any]
) -> tuple[Validation, LeftOut | None]:
    """Validate; with parts left out, add the cross-validation."""
    if without is None:
        from simdp.studies.validate import validate

        return validate(paths, **many), None
    from simdp.studies.validate.folds import BY
    from simdp.studies.validate.leave_out import leave_out

    by = next((fold for fold in BY if fold == without), None)
    if by is None:
        raise ScenarioError(f"--leave-out: {unknown_name('thing to leave out', without, BY)}")
    folds = leave_out(paths, by, **many)
    return folds.validation, folds


def _share(option: str, text: str) -> float:
    from simdp.units import parse_percent

    try:
        return parse_percent(text)
    except UnitError as error:
        raise ScenarioError(f"{option}: {error}") from None


def _check_errors(validation: Validation, limit: float | None) -> int:
    too_large = [] if limit is None else validation.beyond(limit)
    for cluster, what, error in too_large:
        sentence = f"{error:.1%}, and may be {limit:.1%}".replace("%", " %")
        warn(f"{cluster}: the mean error of its predicted {what} is {sentence}.")
    return CHECK_FAILED if too_large else 0
