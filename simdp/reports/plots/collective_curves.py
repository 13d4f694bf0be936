"""What the plots of collectives share: lines with markers, axes of sizes and of magnitudes."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from simdp.reports import theme
from simdp.reports.plots.labels import End, cut
from simdp.units import format_quantity

MAX_TICKS = 12
"""Sizes that are written below an axis."""


class Line(NamedTuple):
    """What was simulated.

    Attributes
    ----------
    name : str
        Written at its end.
    x, y : list of float
        As on the axes.
    color, marker : int
        Which of `theme.SERIES` and `theme.MARKERS`.
    """

    name: str
    x: list[float]
    y: list[float]
    color: int
    marker: int


def draw_lines(ax: Axes, lines: Sequence[Line]) -> list[End]:
    """Draw lines with markers; where they end, they are named."""
    ends = []
    for number, line in enumerate(lines):
        color = theme.SERIES[line.color % len(theme.SERIES)]
        marker = theme.MARKERS[line.marker % len(theme.MARKERS)]
        covered = sum(_coincide(line, later) for later in lines[number + 1 :])
        ax.plot(
            line.x,
            line.y,
            color=color,
            marker=marker,
            **theme.line_style(number, covered),
        )
        ends.append(End(cut(line.name), line.x[-1], line.y[-1], color, marker))
    return ends


def _coincide(a: Line, b: Line) -> bool:
    pairs = zip(a.y, b.y, strict=False)
    return a.x == b.x and all(abs(p - q) <= 0.01 * max(p, q) for p, q in pairs)


def size_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """Give sizes a log2 axis with units at some of them."""
    ax.set_xscale("log", base=2)
    margin = (sizes[-1] / sizes[0]) ** 0.03
    ax.set_xlim(sizes[0] / margin, sizes[-1] * margin)
    ax.xaxis.set_major_locator(FixedLocator(_ticks(sizes)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("Size of the buffer [bytes]")


def _ticks(sizes: Sequence[float]) -> list[float]:
    """Sizes that are far enough apart, from the largest down."""
    kept = [sizes[-1]]
    step = log2(sizes[-1] / sizes[0]) / MAX_TICKS
    for size in reversed(sizes[:-1]):
        if log2(kept[-1] / size) >= step * 0.999:
            kept.append(size)
    return kept[::-1]


def short_size(nbytes: float) -> str:
    """Write a size with three or four digits: ``"64 KiB"``, ``"67.1 MB"``."""
    exact = format_quantity(nbytes, "data size")
    if len(exact) <= len("1024 KiB"):
        return exact
    unit, scale = next(
        (pair for pair in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if nbytes >= pair[1]), ("B", 1.0)
    )
    return f"{nbytes / scale:.3g} {unit}"


def log_axis(ax: Axes, values: Sequence[float], above: float = 0.05) -> None:
    """Give magnitudes a log axis, with some room (a part of the axis) above the largest."""
    low, high = min(values), max(values)
    span = max(high / low, 1.5)
    ax.set_yscale("log")
    ax.set_ylim(low / span**0.05, high * span**above)
    few, many = span < 5, span > 1e3
    ax.yaxis.set_major_locator(
        MaxNLocator(5) if few else LogLocator(10, subs=(1,) if many else (1, 2, 5))
    )
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    ax.yaxis.set_minor_locator(NullLocator())
