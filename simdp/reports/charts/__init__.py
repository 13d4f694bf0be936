"""Charts by kind; this table is the one place of registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simdp.reports.charts import bandwidth, job, loss, memory, scaling, sweep, timeline, validation
from simdp.reports.charts.chart import Picture
from simdp.reports.theme import Drawn
from simdp.results.calibration import CalibrationStudy, StepCalibration
from simdp.results.collective import CollectiveStudy
from simdp.results.comparison import Comparison
from simdp.results.job import JobStudy
from simdp.results.result import Study
from simdp.results.validation import Validation


class ChartKind(NamedTuple):
    """A kind of picture."""

    reads: type  # of the studies that it shows
    declare: Callable[[Any], Picture | None]  # None without its data
    needs: str  # required data, for messages

    def picture(self, study: Drawn) -> Picture | None:
        """Declare the picture of a study; None without its data."""
        return self.declare(study) if isinstance(study, self.reads) else None


CHARTS: dict[str, ChartKind] = {
    "bandwidth": ChartKind(
        CollectiveStudy, bandwidth.bandwidth, "a collective that moves data, at two sizes or more"
    ),
    "comparison": ChartKind(Comparison, sweep.comparison, "a point that ran"),
    "fit": ChartKind(CalibrationStudy, bandwidth.fit, "two measured sizes"),
    "job_finish": ChartKind(JobStudy, job.job_finish, "a job with two runs or more"),
    "job_strip": ChartKind(JobStudy, job.job_strip, "a run with recorded activities"),
    "loss": ChartKind(Study, loss.loss, "a loss, that is, numerics"),
    "loss_time": ChartKind(
        Study,
        loss.loss_time,
        "points with different losses and times, or ranks that do not wait for each other",
    ),
    "memory": ChartKind(
        Study,
        memory.memory,
        "a trace with changes of memory, which runs of more than 2,000 ranks lack",
    ),
    "memory_per_rank": ChartKind(
        Study,
        memory.memory_per_rank,
        "ranks with different peaks, and a trace with changes of memory",
    ),
    "points": ChartKind(
        Study, sweep.points, "a sweep over other keys than numbers and cluster.world_size"
    ),
    "reliability": ChartKind(
        Validation, validation.reliability, "five predicted points with intervals"
    ),
    "scaling": ChartKind(
        Study,
        scaling.scaling,
        f"a sweep over {scaling.AXIS} alone, or with three of its values or more",
    ),
    "simulated_against_measured": ChartKind(
        Validation, validation.simulated_against_measured, "a measured point"
    ),
    "step_fit": ChartKind(StepCalibration, validation.step_fit, "two measured steps"),
    "sweep": ChartKind(
        Study,
        sweep.sweep,
        f"a sweep over a number other than {scaling.AXIS}, with {sweep.MIN_VALUES} values or more",
    ),
    "throughput_curves": ChartKind(
        Validation,
        validation.throughput_curves,
        "steps of one cluster at two world sizes or more",
    ),
    "timeline": ChartKind(
        Study,
        timeline.timeline,
        "a trace, which only the last point of a study has, and only until it is saved",
    ),
    "world_size": ChartKind(CollectiveStudy, bandwidth.world_size, "two world sizes or more"),
}


def fitting(study: Drawn) -> list[str]:
    """List the kinds of chart that a study has the data for, in the table's order."""
    return [kind for kind, chart in CHARTS.items() if chart.picture(study) is not None]


__all__ = ["CHARTS", "ChartKind", "fitting"]
