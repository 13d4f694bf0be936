"""Sizes, fonts and files of pictures.

A figure is made, drawn and saved inside ``with style():``, which leaves no trace in Matplotlib's
global settings. Pyplot is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from simdp.reports.theme import FAINT, INK, MUTED

WIDTH, PANEL_HEIGHT, ROW_HEIGHT, MARGIN_HEIGHT, DPI = 9.0, 3.2, 0.42, 1.6, 150
MIN_ROWS, PANEL_WIDTH = 3, 0.7 * 72 * WIDTH  # width of a panel without its names [points]
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE, TINY_SIZE = 12.0, 9.0, 8.0, 6.5
LINE_WIDTH, THIN_WIDTH, MARKER_SIZE = 1.6, 0.6, 5.5

Look = dict[str, Any]  # keyword arguments of Matplotlib
_FONTS = ["DejaVu Sans"]  # comes with Matplotlib, so that every machine has it
_SETTINGS: Look = {
    "font.family": "sans-serif",
    "font.sans-serif": _FONTS,
    "font.size": TEXT_SIZE,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL_SIZE,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": SMALL_SIZE,
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": MARKER_SIZE,
    "legend.fontsize": SMALL_SIZE,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.12,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in simdp's style, and restore Matplotlib's settings."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def new_figure(
    num_axes: int, num_rows: int, widths: tuple[float, ...] = ()
) -> tuple[Figure, list[Axes]]:
    """Make a figure inside `style`, and its empty panels from the top or the left.

    Panels share their x axis; with relative ``widths`` they are side by side and share their y
    axis. ``num_rows`` counts the rows of bars of a panel; 0 for curves.
    """
    body = max(num_rows, MIN_ROWS) * ROW_HEIGHT if num_rows else num_axes * PANEL_HEIGHT
    figure = Figure((WIDTH, MARGIN_HEIGHT + body), DPI, layout="constrained")
    if widths:
        return figure, list(figure.subplots(1, num_axes, sharey=True, width_ratios=widths))
    return figure, list(figure.subplots(num_axes, 1, sharex=True, squeeze=False)[:, 0])


def add_footer(figure: Figure, text: str) -> None:
    """Write a line at the bottom left of a figure."""
    # As the figure's x label, since the layout leaves room for it.
    figure.supxlabel(text, x=0.012, ha="left", fontsize=SMALL_SIZE, color=MUTED)


def save(figure: Figure, stream: BinaryIO) -> None:
    """Write a figure as PNG inside `style`; equal figures give equal files."""
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": "simdp"})


@cache
def text_width(text: str, size: float) -> float:
    """Measure a line of text in the sans-serif font [points]."""
    font = FontProperties(family=_FONTS, size=size)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def fitted(text: str, size: float, room: float) -> str:
    """Cut a line of text to a width [points]."""
    if text_width(text, size) <= room:
        return text
    kept, too_many = 0, len(text)
    while too_many - kept > 1:
        middle = (kept + too_many) // 2
        if text_width(f"{text[:middle]}…", size) <= room:
            kept = middle
        else:
            too_many = middle
    return text[:kept].rstrip(" ·,") + "…"
