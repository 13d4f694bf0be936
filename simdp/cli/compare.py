"""``compare`` and ``compare-results``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import (
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
    folder_of,
    listed_values,
    overrides_of,
    progress_bar,
    reproduction,
    show,
    table_writer,
    write_text,
)

RESULT_HELP = (
    "A result.json, the folder it lies in, or traces of torch.profiler (a file, or a folder)."
)


def compare(
    scenario: ScenarioPath,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2",
            help="Values to compare, as strategy=single,ddp; several make a grid.",
        ),
    ],
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME-compare].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json, only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: NoPlots = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    go_on: GoOn = False,
    store: StorePath = None,
    table: TablePath = None,
) -> int:
    """Compare strategies or other values: a table here, and a picture in a folder."""
    from simdp.files import whole_files
    from simdp.scenario.overrides import move_paths
    from simdp.scenario.shipped import find
    from simdp.studies import compare as study

    file, overrides = find(scenario), overrides_of(settings)
    values = listed_values("--over", over, "strategy=single,ddp")
    folder = folder_of(out, file, overrides, values, "compare")
    write_table = table_writer(table)
    check_folder(folder, "comparison.json", scenario)
    shared = Shared(workers, scheduler, go_on, store)
    with shared.store(out, quiet) as kept, progress_bar("compare", quiet) as progress:
        comparison = study.compare(
            file,
            values,
            overrides,
            workers=workers or 1,
            scheduler=scheduler,
            progress=progress,
            store=kept,
        )
    comparison.scenario = move_paths(comparison.scenario, file.parent.resolve(), folder.resolve())
    with whole_files(folder, earlier_files(folder)) as add:
        add("comparison.json", lambda stream: write_text(stream, comparison.to_json()))
        if not no_plots:
            options = [f"--over={text}" for text in over]
            add_page(
                add, comparison, command=[*reproduction("compare", scenario, settings), *options]
            )
            add_pictures(add, comparison)
    write_table(comparison.columns)
    if as_json:
        sys.stdout.write(comparison.to_json())
    elif not quiet:
        from simdp.reports import sweep_table

        show(sweep_table.table(comparison))
        show(f"files in {folder}")
    return 0


def compare_results(
    a: Annotated[Path, typer.Argument(metavar="A", help=RESULT_HELP)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same; the reference for A.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for files [none].")
    ] = None,
    no_attribution: Annotated[
        bool,
        typer.Option(
            "--no-attribution", help="Do not simulate each key separately, which takes seconds."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, only.")] = False,
) -> int:
    """Compare two results, or a result and a real run, and attribute the difference."""
    from simdp.files import whole_files
    from simdp.studies import compare_results as study

    if out is not None:
        check_folder(out, "difference.json", a, b)
    difference = study.compare_results(a, b, attribution=not no_attribution)
    if out is not None:
        with whole_files(out, earlier_files(out)) as add:
            add("difference.json", lambda stream: write_text(stream, difference.to_json()))
            add_page(add, difference)
    if as_json:
        sys.stdout.write(difference.to_json())
    else:
        from simdp.reports import difference_table

        show(difference_table.table(difference))
        if out is not None:
            show(f"files in {out}")
    return 0
