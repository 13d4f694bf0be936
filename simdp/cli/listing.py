"""``list``."""

from __future__ import annotations

from typing import Annotated

import typer

from simdp.cli.common import say
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
    say(wide_table.kinds({name: lines(name) for name in shown}))
    return 0
