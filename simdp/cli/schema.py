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
    from simdp.files import check_outputs, write_whole
    from simdp.scenario.shipped import FOR_EDITORS
    from simdp.studies.schema import text

    check_outputs(out)
    if out is None:
        sys.stdout.write(text())
        return 0
    write_whole(out, partial(put, text=text()))
    print(f"{FOR_EDITORS}{out}")
    return 0
