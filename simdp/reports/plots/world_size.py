"""Time of a collective against the number of ranks."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.collective_curves import Line, draw_lines, log_axis, short_size
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import evenly, label_ends
from simdp.results.collective import CollectiveStudy

MAX_LINES = 6
"""Lines; of more sizes some are left out."""


class WorldSize(Plot[CollectiveStudy]):
    """How the time grows with the ranks: a line per algorithm, at a few sizes."""

    kind = "world_size"
    reads = CollectiveStudy
    needs = "two world sizes or more"

    def fits(self, study: CollectiveStudy) -> bool:
        """Tell whether a line has two world sizes or more that take time."""
        return any(len(line.x) > 1 for line in _lines(study))

    def draw(self, study: CollectiveStudy, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
        (ax,) = axes
        lines = _lines(study)
        unit, per_second = theme.time_unit(max(max(line.y) for line in lines))
        lines = [line._replace(y=[y * per_second for y in line.y]) for line in lines]
        sizes = sorted({x for line in lines for x in line.x})
        shown, every = len(_sizes(study)), len(study.curves[0].points)
        said = f"; {shown} of {every} sizes" if shown < every else ""
        of = f" of {short_size(_sizes(study)[0])}" if _is_in_the_title(study) else ""
        title = f"Time of {study.collective}{of} by the number of GPUs{said}"
        entitle(ax, title, f"on {study.cluster}")
        ends = draw_lines(ax, lines)
        ax.set_xscale("log", base=2)
        margin = (sizes[-1] / sizes[0]) ** 0.03
        ax.set_xlim(sizes[0] / margin, sizes[-1] * margin)
        ax.xaxis.set_major_locator(FixedLocator(sizes))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("World size [GPUs]")
        log_axis(ax, [y for line in lines for y in line.y])
        ax.set_ylabel(f"Time [{unit}]")
        label_ends(ax, ends)


def _sizes(study: CollectiveStudy) -> list[int]:
    """Sizes that are shown: all, or some that are spread over them."""
    every = [point.nbytes for point in study.curves[0].points]
    num_algorithms = len({curve.algorithm for curve in study.curves})
    return [every[i] for i in evenly(len(every), max(MAX_LINES // num_algorithms, 1))]


def _is_in_the_title(study: CollectiveStudy) -> bool:
    """Whether several algorithms share one size, which then need not stand at each line."""
    several = len({curve.algorithm for curve in study.curves}) > 1
    return several and len(study.curves[0].points) == 1 and _sizes(study)[0] > 0


def _lines(study: CollectiveStudy) -> list[Line]:
    """Times of every algorithm at sizes that are spread over all; a rank alone takes none."""
    algorithms = list(dict.fromkeys(curve.algorithm for curve in study.curves))
    sizes, lines = _sizes(study), []
    for which, algorithm in enumerate(algorithms):
        for number, nbytes in enumerate(sizes):
            found = [
                (float(curve.world_size), point.seconds)
                for curve in study.curves
                for point in curve.points
                if curve.algorithm == algorithm and point.nbytes == nbytes and point.seconds > 0
            ]
            if not found:
                continue
            name = [algorithm] * (len(algorithms) > 1 or not nbytes)
            name += [short_size(nbytes)] if nbytes and not _is_in_the_title(study) else []
            look = (which, number) if len(algorithms) > 1 < len(sizes) else (which + number,) * 2
            x, y = [n for n, _ in found], [seconds for _, seconds in found]
            lines.append(Line(", ".join(name), x, y, *look))
    return lines
