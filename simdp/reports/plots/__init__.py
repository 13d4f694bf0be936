"""Plots by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Any, BinaryIO

from simdp.reports import theme
from simdp.reports.plots import validation
from simdp.reports.plots.bandwidth import Bandwidth, FitPlot, WorldSize
from simdp.reports.plots.job import JobFinish, JobStrip
from simdp.reports.plots.labels import Plot
from simdp.reports.plots.loss import LossCurve, LossTime
from simdp.reports.plots.memory import MemoryOverTime, MemoryPerRank
from simdp.reports.plots.scaling import ScalingCurve
from simdp.reports.plots.sweep import ComparisonBars, PointBars, SweepCurve
from simdp.reports.plots.timeline import TimelinePlot
from simdp.reports.theme import Drawn

PLOTS: dict[str, type[Plot[Any]]] = {
    "bandwidth": Bandwidth,
    "comparison": ComparisonBars,
    "fit": FitPlot,
    "job_finish": JobFinish,
    "job_strip": JobStrip,
    "loss": LossCurve,
    "loss_time": LossTime,
    "memory": MemoryOverTime,
    "memory_per_rank": MemoryPerRank,
    "points": PointBars,
    "reliability": validation.Reliability,
    "scaling": ScalingCurve,
    "simulated_against_measured": validation.SimulatedAgainstMeasured,
    "step_fit": validation.StepFit,
    "sweep": SweepCurve,
    "throughput_curves": validation.ThroughputCurves,
    "timeline": TimelinePlot,
    "world_size": WorldSize,
}


def fitting(study: Drawn) -> list[str]:
    """List the kinds of plot that a study has the data for, in the table's order."""
    return [kind for kind, plot in PLOTS.items() if _fits(plot, study)]


def _fits(plot: type[Plot[Any]], study: Drawn) -> bool:
    return isinstance(study, plot.reads) and plot().fits(study)


def render(study: Drawn, kind: str, stream: BinaryIO) -> None:
    """Draw a study as the PNG of a kind of `PLOTS`; equal studies give equal bytes.

    Raises `ValueError` for an unknown kind, or if the study lacks its data.
    """
    if kind not in PLOTS:
        raise ValueError(f"kind must be one of {', '.join(PLOTS)}, got {kind!r}")
    plot = PLOTS[kind]()
    if not _fits(type(plot), study):
        raise ValueError(f"a {kind} plot needs {plot.needs}, which this study lacks")
    with theme.style():
        figure, axes = theme.new_figure(plot.num_axes, plot.num_rows(study), plot.widths)
        plot.draw(study, *axes)
        theme.add_footer(figure, theme.footer(study))
        theme.save(figure, stream)


__all__ = ["PLOTS", "Plot", "fitting", "render"]
