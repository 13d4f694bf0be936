"""A calibration by steps: fitted against measured step times, and the errors below."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.results.step_calibration import StepCalibration

BAND = 0.05
"""The error that the band marks."""


class StepFit(Plot[StepCalibration]):
    """How well fitted constants explain measured steps."""

    kind = "step_fit"
    reads = StepCalibration
    needs = "two measured steps"
    num_axes = 2

    def fits(self, study: StepCalibration) -> bool:
        """Tell whether there are two points or more."""
        return len(study.points) > 1

    def draw(self, study: StepCalibration, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        ax, bottom = axes
        unit, per_second = theme.time_unit(max(point.measured for point in study.points))
        measured = [point.measured * per_second for point in study.points]
        fitted = [point.fitted * per_second for point in study.points]
        low, high = min(measured + fitted) / 1.1, max(measured + fitted) * 1.1
        ends = [low, high]
        ax.fill_between(
            ends,
            [end * (1 - BAND) for end in ends],
            [end * (1 + BAND) for end in ends],
            color=theme.FAINT,
            linewidth=0,
        )
        ax.plot(ends, ends, color=theme.MUTED, linewidth=theme.THIN_WIDTH)
        ax.plot(measured, fitted, "o", color=theme.SERIES[0])
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        ax.set_xlabel(f"Measured step time [{unit}]")
        ax.set_ylabel(f"Fitted step time [{unit}]")
        said = f"fitted with {study.residual * 100:.1f} % RMS error; band: {BAND * 100:.0f} %"
        entitle(ax, f"Steps of {study.name}", said)
        bottom.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, linewidth=0)
        bottom.axhline(0.0, color=theme.MUTED, linewidth=theme.THIN_WIDTH)
        errors = [100 * point.error for point in study.points]
        bottom.plot(measured, errors, "o", color=theme.SERIES[0])
        reach = max(100 * BAND, *map(abs, errors)) * 1.15
        bottom.set_ylim(-reach, reach)
        bottom.set_xscale("log")
        bottom.set_xlim(low, high)
        bottom.set_xlabel(f"Measured step time [{unit}]")
        bottom.set_ylabel("Error [%]")
        for axis in (ax.xaxis, ax.yaxis, bottom.xaxis):
            axis.set_major_locator(LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
            axis.set_minor_locator(NullLocator())
