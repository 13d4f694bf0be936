"""``list``."""

from __future__ import annotations

from typing import Annotated

import typer

from simdp.cli.common import say
from simdp.cli.completion import FAMILIES


def list_kinds(
    family: Annotated[
        str | None, typer.Argument(help="One family; all if left out.", autocompletion=FAMILIES)
    ] = None,
) -> int:
    """List every kind of a family, and the catalogue."""
    from simdp.errors import ScenarioError, unknown_name
    from simdp.reports import wide_table
    from simdp.studies.families import kinds, names

    if family is not None and family not in names():
        raise ScenarioError([unknown_name("family", family, names())])
    say(wide_table.kinds({name: kinds(name) for name in ([family] if family else names())}))
    return 0
