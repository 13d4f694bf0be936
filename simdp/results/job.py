"""Typed results of a job of days or weeks, over many runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from simdp.results.comparison import NOISE
from simdp.results.result import Inline, Result, as_json

BADPUT = (
    "startup",
    "data",
    "checkpoint_save",
    "checkpoint_restore",
    "lost_work",
    "recovery",
    "straggler",
    "other",
)
"""Parts of a job's time other than productive steps."""


class JobStretch(NamedTuple):
    """A part of a run, for plots."""

    what: str  # ``training``, ``lost`` (training, too), or a part of `BADPUT`
    start: float  # on the job's clock [s]
    end: float  # on the job's clock [s]


@dataclass(frozen=True)
class Spread:
    """A figure over all runs."""

    # mean, p50, p90, p99: mean and quantiles; of goodput and ettr, as of all others, the larger the
    # higher
    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the statistics of the values of all runs."""
        p50, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
        return cls(float(np.mean(values)), p50, p90, p99)


@dataclass(frozen=True)
class JobRuns:
    """The runs of a job."""

    set: dict[str, Any]
    """Dotted keys and values of its point of a sweep."""
    runs: int
    """How many."""
    goodput: Spread
    """Productive step time over job time."""
    ettr: Spread
    """Productive step time over the time that the job was not queued for nodes."""
    finish_s: Spread
    """Job time [s]."""
    cost_usd: Spread | None
    """None where the cluster has no price, or no power."""
    energy_kwh: Spread | None
    """None where the cluster has no price, or no power."""
    num_failures: float
    """Mean number of events that hit the job."""
    mttf_s: float | None
    """Job time of all runs per failure [s]; None without any."""
    badput_s: dict[str, float]
    """Mean non-productive parts of the job time [s], by `BADPUT`."""
    chance_to_finish: float | None
    """Share of runs that are done by the deadline; None without one."""
    finish_interval_s: tuple[float, float]
    """Between which 90 % of all runs are done [s]."""
    assumed: dict[str, Any]
    """Figures behind the runs, in SI units: of the step, of checkpoints, of failures."""
    finishes: list[float] = field(default_factory=list)
    """Job time of every run, in their order [s]; for pictures."""
    strip: list[JobStretch] = field(default_factory=list)
    """The first run; for pictures."""
    trained: Result | None = None
    """The numbers of the first run, which trained through its failures; None if not requested."""
    energy_between_kwh: tuple[float, float] | None = None
    """Mean energy with the least and the most that a waiting device may draw; None where its power
    was given."""

    @property
    def mean_error_s(self) -> float:
        """Standard error of the mean of `finish_s`, over runs [s]; 0 for one run."""
        if len(self.finishes) < 2:
            return 0.0
        return float(np.std(self.finishes, ddof=1) / len(self.finishes) ** 0.5)

    def is_tie(self, other: JobRuns) -> bool:
        """Return whether the means of two jobs differ by at most their noise.

        That is twice the standard error of their difference.
        """
        noise = NOISE * hypot(self.mean_error_s, other.mean_error_s)
        return abs(self.finish_s.mean - other.finish_s.mean) <= noise

    def to_dict(self) -> dict[str, Any]:
        """Return all but plot data and arrays, as plain data."""
        document = asdict(replace(self, trained=None))
        for name in ("finishes", "strip", "trained"):
            del document[name]
        if self.trained is None:
            return document
        losses = self.trained.metrics.loss
        return {**document, "trained": {**(self.trained.participation or {}), "loss": losses}}


@dataclass
class JobStudy(Inline):
    """A job, or one for every point of a sweep."""

    version: str
    """Of simdp."""
    scenario: dict[str, Any]
    """As resolved."""
    until_s: float | None
    """The deadline [s]."""
    points: list[JobRuns] = field(default_factory=list)
    """In the order of the sweep; one without a sweep."""

    def to_json(self) -> str:
        """Return one JSON document; the same input, the same bytes.

        The job's figures next to the scenario; those of a sweep in ``points``.
        """
        head = {"simdp": self.version, "scenario": self.scenario, "until_s": self.until_s}
        points = [point.to_dict() for point in self.points]
        if self.scenario.get("sweep"):
            return as_json({**head, "points": points})
        (only,) = points
        del only["set"]
        return as_json({**head, **only})
