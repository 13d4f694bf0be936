"""How many measured times lie inside intervals of several levels, beside how many should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.results.reliability import LEVELS, coverage, num_series
from simdp.results.validation import Comparison, Validation

NUM_ROWS = 13
"""Its height, in rows of bars."""

LEAST = 5
"""Fewer points tell nothing of a level."""

ASIDE = 0.35
"""By how much bands of steps and of collectives stand beside each other [%]."""


class Reliability(Plot[Validation]):
    """Nominal against observed coverage of the intervals, of steps and of collectives."""

    kind = "reliability"
    reads = Validation
    needs = "five predicted points with intervals"

    def fits(self, study: Validation) -> bool:
        """Tell whether enough is predicted, with an interval."""
        return bool(_groups(study))

    def num_rows(self, study: Validation) -> int:
        """Count as many as make it nearly as high as it is wide."""
        return NUM_ROWS

    def draw(self, study: Validation, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
        (ax,) = axes
        groups = _groups(study)
        ends = [100 * LEVELS[0] - 3, 100.0]
        ideal: dict[str, Any] = {"color": theme.MUTED, "linewidth": theme.THIN_WIDTH, "ls": "--"}
        ax.plot(ends, ends, **ideal)
        shown = [100 * level for level in LEVELS]
        handles, lowest = [], ends[0]
        for number, (name, points) in enumerate(groups.items()):
            color, marker = theme.look(number)
            found = coverage(points)
            x = [level + ASIDE * (2 * number - len(groups) + 1) for level in shown]
            ax.vlines(
                x,
                [100 * one.low for one in found],
                [100 * one.high for one in found],
                color=color,
                alpha=0.3,
                linewidth=6,
            )
            y = [100 * one.observed for one in found]
            ax.plot(x, y, marker=marker, color=color)
            lowest = min([lowest, *y, *(100 * one.low for one in found)])
            handles.append(Line2D([], [], color=color, marker=marker, label=_said(name, points)))
        handles.append(Line2D([], [], label="as nominal", **ideal))
        band = "90 % of what so many independent series would show"
        handles.append(Line2D([], [], color=theme.MUTED, alpha=0.3, linewidth=6, label=band))
        ax.set_xticks(shown, [f"{level:.0f}" for level in shown])
        ax.set_xlim(ends[0], ends[1] + 1)
        ax.set_ylim(lowest - 3, 101)
        ax.set_xlabel("Nominal coverage of the interval [%]")
        ax.set_ylabel("Measured times inside [%]")
        said = "other levels than 90 %: log-normal on each side of the simulated time"
        entitle(ax, "How sure predictions are, and how sure they say they are", said)
        ax.legend(handles=handles, loc="upper left")


def _groups(study: Validation) -> dict[str, Sequence[Comparison]]:
    """Predicted steps, and sizes of collectives, where there are enough with an interval."""
    every: dict[str, Sequence[Comparison]] = {"steps": study.points, "collectives": study.rows}
    found = {name: [p for p in points if p.is_predicted] for name, points in every.items()}
    return {
        name: points
        for name, points in found.items()
        if sum(point.low < point.high for point in points) >= LEAST
    }


def _said(name: str, points: Sequence[Comparison]) -> str:
    """What the legend says of a line."""
    series = "scenario" if name == "steps" else "table"
    count = num_series(points)
    return f"{name}: {len(points)} in {count} {series}{'s' * (count > 1)}"
