"""``list``, ``schema`` and ``gallery``: what simdp has."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import show, write_text
from simdp.cli.completion import FAMILIES
from simdp.errors import ScenarioError, unknown_name


def list_kinds(
    family: Annotated[
        str | None, typer.Argument(help="One family; all if left out.", autocompletion=FAMILIES)
    ] = None,
    where: Annotated[
        bool, typer.Option("--where", help="Print the file and class of each kind instead.")
    ] = False,
) -> int:
    """List every kind of a family, and the catalogue."""
    from simdp.reports import wide_table
    from simdp.studies.families import CODELESS, kinds, names, places

    if family is not None and family not in names():
        raise ScenarioError(unknown_name("family", family, names()))
    shown = [family] if family else [name for name in names() if not (where and name in CODELESS)]
    lines = places if where else kinds
    show(wide_table.kinds({name: lines(name) for name in shown}))
    return 0


def schema(
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
) -> int:
    """Print the JSON Schema of scenarios, by which editors complete and check them."""
    from simdp.files import check_outputs, write_whole
    from simdp.scenario.shipped import FOR_EDITORS
    from simdp.studies.schema import text

    check_outputs(out)
    if out is None:
        sys.stdout.write(text())
        return 0
    write_whole(out, partial(write_text, text=text()))
    print(f"{FOR_EDITORS}{out}")
    return 0


def gallery(
    scenarios: Annotated[
        Path | None, typer.Option(help="Folder of scenarios [the shipped ones].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("plots"),
) -> int:
    """Redraw the pictures of the README and docs/."""
    from simdp.files import check_outputs
    from simdp.scenario.shipped import folder
    from simdp.studies.gallery import draw_gallery

    check_outputs(out / "picture.png")
    for path in draw_gallery(scenarios or folder(), out):
        print(path)
    return 0
