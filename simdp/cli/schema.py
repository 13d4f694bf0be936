"""``schema``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from simdp.cli.common import put


def schema(
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
) -> int:
    """Print the JSON Schema of scenarios, by which editors complete and check them."""
    from simdp.files import whole_files
    from simdp.scenario.shipped import FOR_EDITORS
    from simdp.studies.schema import text

    if out is None:
        sys.stdout.write(text())
        return 0
    with whole_files(out.parent) as add:
        add(out.name, partial(put, text=text()))
    print(f"{FOR_EDITORS}{out}")
    return 0
