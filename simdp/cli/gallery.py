"""``gallery``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
