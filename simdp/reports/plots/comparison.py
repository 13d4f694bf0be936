"""Points of a comparison side by side: their steps in parts, and their fullest devices."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from simdp.reports.captions import about_scenario
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import key_label, wrapped
from simdp.reports.plots.step_parts import MAX_ROWS, draw_points, shown_points
from simdp.results.comparison import ComparedPoint, Comparison, written


class ComparisonBars(Plot[Comparison]):
    """Every point's step in parts, and beside it the memory of its fullest device."""

    kind = "comparison"
    reads = Comparison
    needs = "a point that ran"
    num_axes = 2
    widths = (1.9, 1.0)

    def fits(self, study: Comparison) -> bool:
        """Tell whether a point ran."""
        return bool(study.ran)

    def num_rows(self, study: Comparison) -> int:
        """Count the points that are shown; names of three lines and more need higher rows."""
        lines = max(name.count("\n") + 1 for name in _names(study.points))
        return min(len(study.points), MAX_ROWS) * -(-lines // 2)

    def draw(self, study: Comparison, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        left, right = axes
        every = study.points if len(study.points) <= MAX_ROWS else study.ran
        points = shown_points(every)
        hidden = len(study.points) - len(points)
        said = f"{len(points)} of {len(study.points)} points are shown" if hidden else ""
        draw_points(left, right, points, _names(points), said)
        left.set_ylabel(", ".join(dict.fromkeys(key_label(k, study.scenario) for k in study.over)))
        of = about_scenario(study.scenario, study.over)
        entitle(left, "What a step is made of", of, rows=1)


def _names(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the rows; where points differ in it, with the number of ranks."""
    several = len({point.world_size for point in points if point.world_size is not None}) > 1
    names = []
    for point in points:
        ranks = f"{point.world_size} GPU{'s' * (point.world_size != 1)}"
        told = "cluster.world_size" in point.set and point.label.endswith(str(point.world_size))
        # The axis names the key; one alone need not stand in every row.
        name = written(*point.set.values()) if len(point.set) == 1 else point.label
        tell = several and not told and point.world_size is not None
        names.append(wrapped(name + (f" · {ranks}" if tell else "")))
    return names
