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
    put,
    retold,
    say,
    table_writer,
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
        found = study.compare(
            file,
            values,
            overrides,
            workers=workers or 1,
            scheduler=scheduler,
            progress=progress,
            store=kept,
        )
    found.scenario = move_paths(found.scenario, file.parent.resolve(), folder.resolve())
    with whole_files(folder, earlier_files(folder)) as add:
        add("comparison.json", lambda stream: put(stream, found.to_json()))
        if not no_plots:
            asked = [f"--over={text}" for text in over]
            add_page(add, found, command=[*retold("compare", scenario, settings), *asked])
            add_pictures(add, found)
    write_table(found.columns)
    if as_json:
        sys.stdout.write(found.to_json())
    elif not quiet:
        from simdp.reports import sweep_table

        say(sweep_table.table(found))
        say(f"files in {folder}")
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
    found = study.compare_results(a, b, attribution=not no_attribution)
    if out is not None:
        with whole_files(out, earlier_files(out)) as add:
            add("difference.json", lambda stream: put(stream, found.to_json()))
            add_page(add, found)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        from simdp.reports import difference_table

        say(difference_table.table(found))
        if out is not None:
            say(f"files in {out}")
    return 0
