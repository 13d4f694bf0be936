"""Titles, legends, remarks, and names at the ends of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from simdp.reports import theme
from simdp.reports.plots.style import (
    MARKER_SIZE,
    PANEL_WIDTH,
    SMALL_SIZE,
    THIN_WIDTH,
    WIDTH,
    Look,
    fitted,
    text_width,
)

ABOUT = "about"  # id of the line below a title
HALO = [withStroke(linewidth=2.5, foreground="white")]  # keeps texts readable on lines
PALE: Look = {"fontsize": SMALL_SIZE, "color": theme.MUTED}  # look of remarks
SWATCH = 34.0  # width of a legend's entry without its name [points]


def note(ax: Axes, text: str, at: tuple[float, float], by: tuple[float, float], look: Look) -> None:
    """Write a small text beside a place, moved by some points."""
    given: Look = {"textcoords": "offset points", "fontsize": SMALL_SIZE} | look
    ax.annotate(text, at, by, **given)


def patch(name: str, color: str, hatch: str, hatch_color: str) -> Patch:
    """Make the legend's entry of a fill."""
    return Patch(fc=color, ec=hatch_color, hatch=hatch * 2, linewidth=0, label=name)


def entitle(ax: Axes, title: str, about: str, rows: int) -> None:
    """Write a title, and below it, smaller, what the picture is of, cut to the panel's width.

    ``rows`` of a legend are between these and the panel.
    """
    above = 5.0 + 1.9 * SMALL_SIZE * rows
    ax.set_title(title, pad=above + (1.6 * SMALL_SIZE if about else 3.0))
    if about:
        text = fitted(about, SMALL_SIZE, 72 * WIDTH - 80)
        look: Look = {"xycoords": "axes fraction", "va": "bottom", "color": theme.MUTED}
        note(ax, text, (0.0, 1.0), (0.0, above), look | {"in_layout": False, "gid": ABOUT})


def legend_above(ax: Axes, handles: Sequence[Artist], width: float = PANEL_WIDTH) -> int:
    """Draw a legend between the title and the panel; return its rows."""
    if not handles:
        return 0
    widths = [text_width(str(handle.get_label()), SMALL_SIZE) + SWATCH for handle in handles]
    num_rows = next(
        rows
        for rows in range(1, len(handles) + 1)
        if rows == len(handles)
        or sum(max(widths[i : i + rows]) for i in range(0, len(widths), rows)) <= width
    )
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=-(-len(handles) // num_rows),
        borderaxespad=0.2,
        borderpad=0.2,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )
    return num_rows


class End(NamedTuple):
    """End and look of a line."""

    text: str  # the line's name
    x: float  # in data
    y: float  # in data
    color: str
    marker: str = ""  # may be empty
    dashed: bool = False  # for theory
    is_open: bool = False  # open marker, as for measurements


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Move labels apart as little as possible, at least ``gap`` between neighbours.

    Positions are fractions of the panel's height; equal ones keep their order, the first on top.
    """
    order = sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))
    # Runs of touching labels, each around the mean of its wishes; touching runs join.
    runs: list[list[int]] = []
    for i in order:
        runs.append([i])
        while len(runs) > 1:
            bottom = _top(runs[-2], wanted, gap) - gap * (len(runs[-2]) - 1)
            if bottom - gap >= _top(runs[-1], wanted, gap):
                break
            runs[-2:] = [runs[-2] + runs[-1]]
    placed = [0.0] * len(wanted)
    for run in runs:
        for place, i in enumerate(run):
            placed[i] = _top(run, wanted, gap) - place * gap
    return placed


def _top(run: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return sum(wanted[i] for i in run) / len(run) + gap * (len(run) - 1) / 2


def label_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Name lines right of the panel, beside their ends; call it last."""
    if not ends:
        return
    ax.set_xlim(ax.get_xlim())
    ax.set_ylim(ax.get_ylim())  # from here on nothing may move the data
    to_fraction = ax.transScale + ax.transLimits
    starts = [to_fraction.transform((end.x, end.y)) for end in ends]
    gap = 1.35 * SMALL_SIZE * ax.get_figure(root=True).dpi / 72 / ax.bbox.height  # type: ignore[union-attr]
    heights = spread([float(start[1]) for start in starts], gap)
    for end, start, height in zip(ends, starts, heights, strict=True):
        look: Look = {"color": end.color, "transform": ax.transAxes, "clip_on": False}
        x, y = [start[0], 1.012, 1.03], [start[1], height, height]
        style = "--" if end.dashed else "-"
        ax.add_artist(Line2D(x, y, lw=THIN_WIDTH, ls=style, **look))
        if end.marker:
            look |= {"ms": MARKER_SIZE, "mfc": "none" if end.is_open else end.color}
            ax.add_artist(Line2D([1.03], [height], ls="", marker=end.marker, **look))
        look = {"transform": ax.transAxes, "va": "center_baseline", "fontsize": SMALL_SIZE}
        ax.text(1.042, height, end.text, **look)
