"""``compare-results``: explains the difference between two results, or a result and a real run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import add_page, check_folder, earlier_files, put, say

Given = "A result.json, the folder it lies in, or traces of torch.profiler (a file, or a folder)."


def compare_results(
    a: Annotated[Path, typer.Argument(metavar="A", help=Given)],
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
