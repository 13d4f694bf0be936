"""What every rank keeps at its peak, where ranks differ: bars of parts beside each other."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about_point
from simdp.reports.plots.alike import choose, listed
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.memory_parts import FAR, capacity, name_parts, rest, shown_parts
from simdp.results.memory import PARTS, usage
from simdp.results.result import Result, Study

MAX_ROWS = 16
"""Bars; of more groups of ranks some are left out."""

BAR_HEIGHT = 0.62
"""Of a row."""

LEAST_DIFFERENCE = 0.01
"""Part of the highest peak by which another one must be lower for ranks to differ."""


class MemoryPerRank(Plot[Study]):
    """A bar for ranks with the same peak, and what that is made of."""

    kind = "memory_per_rank"
    reads = Study
    needs = "ranks whose peaks differ, and a trace that tells when memory is taken"

    def fits(self, study: Study) -> bool:
        """Tell whether the last point's ranks differ in what they keep."""
        result = study.points[-1] if study.points else None
        if result is None or result.trace is None or not result.trace.memory:
            return False
        peaks = result.metrics["peak_memory_bytes"]
        return bool(min(peaks) < (1 - LEAST_DIFFERENCE) * max(peaks))

    def num_rows(self, study: Study) -> int:
        """Count the bars that are shown."""
        return min(len(_groups(study.points[-1])), MAX_ROWS)

    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
        (ax,) = axes
        result = study.points[-1]
        shown, kept = _peaks(result)
        total = kept.sum(axis=1)
        room = max(capacity(result, rank) for rank, *_ in shown)
        is_near = room <= FAR * total.max()
        unit, scale = theme.nbytes_unit(max(total.max(), room if is_near else 0.0))
        _draw_bars(ax, kept / scale)
        for row, value in enumerate(total / scale):
            ax.annotate(
                f"{value:.4g}",
                (value, row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=theme.SMALL_SIZE,
            )
        right = max(total.max(), room if is_near else 0.0) / scale
        if is_near:
            ax.axvline(room / scale, color=theme.STRAGGLER, linestyle="--")
        ax.set_xlim(0, 1.1 * right)
        ax.set_ylim(len(shown) - 0.45, -0.55)
        ax.yaxis.set_major_locator(FixedLocator(list(range(len(shown)))))
        counts = [f"\n{len(ranks)} ranks" if len(ranks) > 2 else "" for ranks in shown]
        ax.set_yticklabels(
            [listed(ranks) + count for ranks, count in zip(shown, counts, strict=True)]
        )
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        size_unit, of = theme.nbytes_unit(room)
        drawn = "dashed line: " if is_near else ""
        ax.set_xlabel(
            f"Memory at the peak [{unit}], {drawn}capacity {room / of:.4g} {size_unit}"
            + _left_out(len(_groups(result)), len(shown))
        )
        ax.set_ylabel("Rank [number]")
        entitle(ax, "Memory of every rank at its peak", about_point(result), rows=1)


def _peaks(result: Result) -> tuple[list[list[int]], Floats]:
    """The groups of ranks that are shown, and what each keeps at its peak, part by part [bytes]."""
    assert result.trace is not None, "draw only studies that fit"
    peaks = np.array(result.metrics["peak_memory_bytes"])
    every = _groups(result)
    shown = [every[i] for i in choose(every, [int(peaks.argmax()), int(peaks.argmin())], MAX_ROWS)]
    kept = np.zeros((len(shown), len(PARTS)))
    for row, (rank, *_) in enumerate(shown):
        found = usage(result.trace.memory, [rank])
        kept[row] = found.kept[found.peak()]
    return shown, kept


def _groups(result: Result) -> list[list[int]]:
    """Ranks with equal peaks, the groups by their first ranks."""
    found: dict[int, list[int]] = {}
    for rank, peak in enumerate(result.metrics["peak_memory_bytes"]):
        found.setdefault(peak, []).append(rank)
    return list(found.values())


def _draw_bars(ax: Axes, kept: Floats) -> None:
    parts = shown_parts(kept)
    rows, left = np.arange(len(kept)), np.zeros(len(kept))
    layers = [(kept[:, part], theme.PART_FILLS[PARTS[part]]) for part in parts]
    layers.append((rest(kept, parts), theme.Fill(theme.FAINT, "", "none", theme.INK)))
    for width, fill in layers:
        ax.barh(
            rows,
            width,
            BAR_HEIGHT,
            left,
            color=fill.color,
            edgecolor=fill.hatch_color,
            hatch=fill.hatch,
            linewidth=0,
        )
        left = left + width
    name_parts(ax, parts)


def _left_out(num_groups: int, num_shown: int) -> str:
    if num_shown == num_groups:
        return ""
    return f"\n{num_shown} of {num_groups} groups of ranks are shown, the fullest among them"
