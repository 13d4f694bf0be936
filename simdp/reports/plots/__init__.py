"""Pictures: the declarations of `simdp.reports.charts`, drawn with Matplotlib."""

from __future__ import annotations

from typing import BinaryIO

from simdp.reports import theme
from simdp.reports.charts import CHARTS, fitting
from simdp.reports.plots.drawer import draw
from simdp.reports.plots.style import add_footer, save, style


def render(study: theme.Drawn, kind: str, stream: BinaryIO) -> None:
    """Draw a study as the PNG of a kind of `CHARTS`; equal studies give equal bytes.

    Raises `ValueError` for an unknown kind, or if the study lacks its data.
    """
    if kind not in CHARTS:
        raise ValueError(f"kind must be one of {', '.join(CHARTS)}, got {kind!r}")
    picture = CHARTS[kind].picture(study)
    if picture is None:
        raise ValueError(f"a {kind} plot needs {CHARTS[kind].needs}, which this study lacks")
    with style():
        figure, _ = draw(picture)
        add_footer(figure, theme.footer(study))
        save(figure, stream)


__all__ = ["draw", "fitting", "render"]
