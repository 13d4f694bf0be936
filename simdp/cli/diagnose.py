"""``diagnose``: why a job's step takes as long as it does, from its traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import add_page, put, say
from simdp.cli.completion import clusters


def diagnose(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE|FOLDER",
            help="A trace of torch.profiler or of simdp (.json, .json.gz), a folder or .tar.gz "
            "with one per rank, dumps of NCCL's flight recorder, or JSON of DDP's logging data.",
        ),
    ],
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            help="What collectives are held against: see `list machines`, or a scenario [what "
            "traces of simdp name; else one with the same device].",
            autocompletion=clusters,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the JSON there, too.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page there that shows it.")
    ] = None,
    no_remedies: Annotated[
        bool, typer.Option("--no-remedies", help="Simulate no remedies, which takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, only.")] = False,
) -> int:
    """Say why a real job's step takes as long as it does, from its traces, and what would help."""
    from simdp.files import whole_files
    from simdp.studies import diagnose as study

    named = None if machine is None else str(machine)
    found = study.diagnose(path, machine=named, remedies=not no_remedies)
    if out is not None:
        with whole_files(out.parent) as add:
            add(out.name, lambda stream: put(stream, found.to_json()))
    if html is not None:
        asked = ["diagnose", str(path), *(["--machine", named] if named else [])]
        with whole_files(html.parent) as add:
            add_page(add, found, html.name, command=asked, title=path.name)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        from simdp.reports import diagnosis_table

        say(diagnosis_table.page(found, path.name))
    return 0
