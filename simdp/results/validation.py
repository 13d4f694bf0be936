"""Typed results of a validation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import comb, exp, lgamma, log, log1p
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from simdp.arrays import grouped
from simdp.results.result import Inline

# Validation ---------------------------------------------------------------------------------------

LARGE_NBYTES = 64 * 2**20  # size from which bandwidth dominates the time of a collective [bytes]

LEVEL, SIGNIFICANT = 0.9, 0.05
"""Nominal share of measured times in their intervals; significance level of its test."""


@dataclass(frozen=True)
class TimeComparison:
    """A measured time and a simulated one."""

    # scenario, cluster: path in the file, and group of the measurement: ``measured.cluster``, else
    # the machine, else the scenario
    scenario: str
    cluster: str
    set: dict[str, Any]  # the point's settings in the scenario
    world_size: int
    role: str  # ``"predicted"``, or ``"calibration"`` where constants were fitted to it
    measured: float  # times [s]
    simulated: float  # times [s]
    # low, high: the 90 % interval of the simulated time [s]
    low: float
    high: float
    note: str | None  # effect missing in the simulation
    # class of the network that joins the ranks, such as ``"nvlink"`` or ``"tcp"``, of
    # `simdp.collectives.costs.nccl`; of several nodes that between them. Empty for one rank.
    joined: str = field(default="", kw_only=True)

    @property
    def error(self) -> float:
        """Simulated over measured time, less one."""
        return self.simulated / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low <= self.measured <= self.high

    @property
    def is_predicted(self) -> bool:
        """Whether nothing was fitted to it."""
        return self.role == "predicted"

    def plain(self) -> dict[str, Any]:
        """Return plain data, with the error."""
        named = {f"{k}_s" if k in _TIMES else k: v for k, v in asdict(self).items()}
        return {**named, "error": self.error}


_TIMES = (
    "measured",
    "simulated",
    "low",
    "high",
    "linear",
    "ring",
    "exposed_measured",
    "exposed_simulated",
)


Fits = Literal["yes", "tight", "no"]
"""Whether a step fits: surely, depending on the memory beside tensors, or not."""


@dataclass(frozen=True)
class StepComparison(TimeComparison):
    """A step."""

    samples: float  # of all ranks
    # step time of a naive predictor: the measured throughput of fewer ranks, scaled linearly [s];
    # None without a measurement
    linear: float | None
    # step time of another one: the simulated compute, then a ring all_reduce of all gradients at
    # the links' bandwidth [s]
    ring: float
    # wait for gradients after backward; None if not measured [s]
    exposed_measured: float | None = None
    exposed_simulated: float = 0.0  # the simulated step's ``exposed_comm`` and ``wait`` [s]
    # properties that no step of the machine's fit had: ``model``, ``nodes``, ``network``
    new: tuple[str, ...] = ()
    fits: Fits = "yes"  # whether the simulated step fits the device


@dataclass(frozen=True)
class CollectiveComparison(TimeComparison):
    """One size of a collective."""

    collective: str
    table: int  # number of its table in the scenario, from 0
    nbytes: int  # as nccl-tests counts it [bytes]
    # properties that no table of the machine's fit had: ``collective``, ``nodes``, ``network``
    new: tuple[str, ...] = ()
    # time of a naive predictor: the ring formula with the links' latency and bandwidth [s]
    ring: float | None = None


@dataclass(frozen=True)
class MemoryComparison:
    """Measured and simulated memory of the fullest rank."""

    scenario: str
    """As of a `TimeComparison`."""
    cluster: str
    """As of a `TimeComparison`."""
    set: dict[str, Any]
    """As of a `TimeComparison`."""
    world_size: int
    """As of a `TimeComparison`."""
    kind: str
    """``"allocated"`` or ``"reserved"``."""
    measured: float | None
    """Peak [bytes]; None if the run was out of memory."""
    simulated: float
    """Peak [bytes]."""
    low: float
    """The 90 % interval of the measured peak [bytes]."""
    high: float
    """The 90 % interval of the measured peak [bytes]."""
    capacity: float
    """Memory of the device [bytes]."""
    fits: Fits
    """Whether the simulated run fits the device."""
    note: str | None
    """As of a `TimeComparison`."""

    @property
    def error(self) -> float | None:
        """Simulated over measured peak, less one; None if the run was out of memory."""
        return None if self.measured is None else self.simulated / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured peak lies in the interval, or the run is rightly refused."""
        if self.measured is None:
            return self.fits == "no"
        return self.low <= self.measured <= self.high

    def plain(self) -> dict[str, Any]:
        """As plain data, with the error."""
        figures = ("measured", "simulated", "low", "high", "capacity")
        named = {f"{k}_bytes" if k in figures else k: v for k, v in asdict(self).items()}
        return {**named, "error": self.error}


@dataclass(frozen=True)
class Excluded:
    """An excluded point of the source, and the reason."""

    scenario: str
    cluster: str
    set: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class NotCompared:
    """A file, or a part of its ``measured``, that is wrong and was not compared."""

    file: str
    point: str | None  # such as ``points.3``, ``collectives.0``; None: the whole file
    reason: str  # one line

    @property
    def line(self) -> str:
        """The place and the reason, in one line."""
        place = "" if self.point is None else f" measured.{self.point}:"
        return f"{self.file}:{place} {self.reason}"


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of the predicted points of a cluster, a scenario or a table; None without any."""

    name: str  # of the cluster, or of the scenario
    # num_points, num_predicted: all points; the points outside the fit, the only ones counted below
    num_points: int
    num_predicted: int
    mean_error: float | None  # of the time, absolute
    worst_error: float | None  # of the time, absolute
    noise: float  # error from measurement noise, a lower bound for any model
    # Kendall's rank correlation of steps, over pairs that differ by more than the noise and are not
    # both calibration
    tau: float | None
    inside: float | None  # share of the measured times inside their 90 % interval
    # linear_error, ring_error: mean absolute errors of the naive predictors; for collectives only
    # the ring
    linear_error: float | None
    ring_error: float | None
    large_error: float | None  # of collectives of 64 MiB and more, the mean

    @property
    def loses_to_ring(self) -> bool:
        """Whether the ring formula is nearer to the measured times, by more than the noise."""
        if self.mean_error is None or self.ring_error is None:
            return False
        return self.mean_error - self.ring_error > self.noise


@dataclass(frozen=True)
class Coverage:
    """Number of measured times in their 90 % intervals."""

    what: str  # ``"steps"`` or ``"collectives"``
    # inside, num_points: times in their interval; all predicted ones
    inside: int
    num_points: int

    @property
    def share(self) -> float:
        """Share inside."""
        return self.inside / self.num_points

    @property
    def is_too_low(self) -> bool:
        """Whether the share is significantly too low.

        By a one-sided binomial test at `SIGNIFICANT`, as if points were independent.
        """
        return binomial_tail(self.inside, self.num_points, LEVEL) < SIGNIFICANT


def binomial_tail(most: int, num_trials: int, chance: float) -> float:
    """Return the probability of at most ``most`` successes of independent trials."""
    whole = lgamma(num_trials + 1)
    return sum(
        exp(
            whole
            - lgamma(k + 1)
            - lgamma(num_trials - k + 1)
            + k * log(chance)
            + (num_trials - k) * log1p(-chance)
        )
        for k in range(most + 1)
    )


@dataclass(frozen=True)
class Validation(Inline):
    """Result of ``python -m simdp validate``."""

    version: str
    """Of simdp."""
    points: tuple[StepComparison, ...]
    """Steps, in the order of the scenarios."""
    rows: tuple[CollectiveComparison, ...]
    """Collectives by size, in the order of the scenarios."""
    noise: dict[str, float]
    """By cluster."""
    sources: dict[str, str]
    """Sources of the figures, by scenario."""
    excluded: tuple[Excluded, ...] = ()
    """Excluded points."""
    memory: tuple[MemoryComparison, ...] = ()
    """Peaks of memory, in the order of the scenarios."""
    not_compared: tuple[NotCompared, ...] = ()
    """Wrong files and points."""

    @property
    def clusters(self) -> list[str]:
        """Every cluster, in the order of the scenarios."""
        return list(self.noise)

    def of(self, cluster: str) -> Validation:
        """Return the measurements on one cluster."""
        return replace(
            self,
            points=tuple(point for point in self.points if point.cluster == cluster),
            rows=tuple(row for row in self.rows if row.cluster == cluster),
            noise={cluster: self.noise[cluster]},
            excluded=tuple(row for row in self.excluded if row.cluster == cluster),
            memory=tuple(row for row in self.memory if row.cluster == cluster),
            not_compared=(),
        )

    def memory_error(self) -> float | None:
        """Mean absolute error of the peaks of memory; None without any."""
        return _mean(abs(peak.error) for peak in self.memory if peak.error is not None)

    def not_fitting(self) -> list[StepComparison]:
        """Measured steps that would not fit their device, although they ran."""
        return [point for point in self.points if point.fits == "no"]

    def tables(self) -> list[tuple[CollectiveComparison, ...]]:
        """Return rows table by table."""
        groups = grouped(((row.scenario, row.table), row) for row in self.rows)
        return [tuple(rows) for rows in groups.values()]

    def step_summaries(self) -> list[ErrorSummary]:
        """Return errors of steps for each cluster with measured steps."""
        parts = [(cluster, self.of(cluster).points) for cluster in self.clusters]
        return [summary(name, points, self.noise[name]) for name, points in parts if points]

    def overall(self) -> ErrorSummary | None:
        """Return errors of all steps, without an order across clusters; None without any."""
        if not self.points:
            return None
        least = min(self.noise[point.cluster] for point in self.points)
        return replace(summary("all clusters", self.points, least), tau=None)

    def scenario_summaries(self, cluster: str) -> list[ErrorSummary]:
        """Return errors of the steps on one cluster, scenario by scenario."""
        groups = grouped((point.scenario, point) for point in self.of(cluster).points)
        return [summary(name, group, self.noise[cluster]) for name, group in groups.items()]

    def collective_summaries(self) -> list[ErrorSummary]:
        """Return errors of the tables of each cluster with any; means over its tables."""
        means = []
        for cluster in self.clusters:
            part = self.of(cluster)
            if not part.rows:
                continue
            noise = part.noise[cluster]
            summaries = [summary(cluster, rows, noise) for rows in part.tables()]
            mean = _mean(table_errors.mean_error for table_errors in summaries)
            large = _mean(table_errors.large_error for table_errors in summaries)
            whole = summary(cluster, part.rows, noise)
            ring = _mean(table_errors.ring_error for table_errors in summaries)
            means.append(replace(whole, mean_error=mean, large_error=large, ring_error=ring))
        return means

    def coverages(self) -> list[Coverage]:
        """Count predicted steps, and sizes of collectives, in their 90 % intervals."""
        coverages = []
        both: tuple[tuple[str, Sequence[TimeComparison]], ...]
        both = (("steps", self.points), ("collectives", self.rows))
        for kind, every in both:
            inside = [point.is_inside for point in every if point.is_predicted]
            if inside:
                coverages.append(Coverage(kind, sum(inside), len(inside)))
        return coverages

    def beyond(self, limit: float) -> list[tuple[str, str, float]]:
        """Return clusters with a larger mean error of predicted points.

        Each with ``"steps"``, ``"collectives"`` or ``"peaks of memory"``, and the error.
        """
        errors = [
            *((steps.name, "steps", steps.mean_error) for steps in self.step_summaries()),
            *((rows.name, "collectives", rows.mean_error) for rows in self.collective_summaries()),
            *((name, "peaks of memory", self.of(name).memory_error()) for name in self.clusters),
        ]
        return [
            (name, kind, error)
            for name, kind, error in errors
            if error is not None and error > limit
        ]

    def to_json(self) -> str:
        """Write validation.json."""
        return json.dumps(self.plain(), indent=1, allow_nan=False) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return the content of validation.json."""
        overall = self.overall()
        return {
            "simdp": self.version,
            "overall": None if overall is None else asdict(overall),
            "clusters": [asdict(record) for record in self.step_summaries()],
            "scenarios": [
                {"cluster": cluster, **asdict(record)}
                for cluster in self.clusters
                for record in self.scenario_summaries(cluster)
            ],
            "collectives": [asdict(record) for record in self.collective_summaries()],
            "points": [point.plain() for point in self.points],
            "collective_points": [row.plain() for row in self.rows],
            "excluded": [asdict(record) for record in self.excluded],
            "memory": [record.plain() for record in self.memory],
            "not_compared": [asdict(record) for record in self.not_compared],
            "sources": self.sources,
        }


def summary(name: str, points: Sequence[TimeComparison], noise: float) -> ErrorSummary:
    """Summarise the errors of all steps, or all rows of a table, with their relative noise."""
    predicted = [point for point in points if point.is_predicted]
    errors = [abs(point.error) for point in predicted]
    steps = [point for point in predicted if isinstance(point, StepComparison)]
    rows = [point for point in predicted if isinstance(point, CollectiveComparison)]
    both: list[StepComparison | CollectiveComparison] = [*steps, *rows]
    return ErrorSummary(
        name=name,
        num_points=len(points),
        num_predicted=len(predicted),
        mean_error=_mean(errors),
        worst_error=max(errors, default=None),
        noise=noise,
        tau=kendall_tau([p for p in points if isinstance(p, StepComparison)], noise),
        inside=_mean(float(point.is_inside) for point in predicted),
        linear_error=_mean(_off(step.linear, step.measured) for step in steps),
        ring_error=_mean(_off(point.ring, point.measured) for point in both),
        large_error=_mean(abs(row.error) for row in rows if row.nbytes >= LARGE_NBYTES),
    )


def kendall_tau(points: Sequence[TimeComparison], noise: float) -> float | None:
    """Return Kendall's rank correlation of simulated and measured times.

    Pairs count if their measured times differ by more than the relative noise, and at least one is
    predicted. The result is ``(concordant - discordant) / pairs``, between -1 and 1; None without
    any pair.

    References
    ----------
    Kendall, "A new measure of rank correlation", Biometrika 30, 1938.
    """
    pairs = agreed = 0
    for i, a in enumerate(points):
        for b in points[:i]:
            far = abs(log(a.measured / b.measured)) > log1p(noise)
            if far and (a.is_predicted or b.is_predicted):
                pairs += 1
                order = (a.simulated > b.simulated) - (a.simulated < b.simulated)
                agreed += order if a.measured > b.measured else -order
    return agreed / pairs if pairs else None


def _off(time: float | None, measured: float) -> float | None:
    return None if time is None else abs(time / measured - 1)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# Left out -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutPoint:
    """The fold of a point, and its prediction from the whole fit."""

    fold: str | None  # None if nothing could be left out
    counts: bool  # whether it is predicted; a step that the workload was fitted to is not
    fitted: float  # time by the machine's own entry [s]


@dataclass(frozen=True)
class FoldResult:
    """Errors of the left-out points of a fold."""

    name: str  # the part left out, of which cluster
    kind: str  # type of its points
    num_points: int  # predicted ones, the only ones counted below
    mean_error: float  # of the time, absolute
    worst_error: float  # of the time, absolute
    # Kendall's rank correlation of steps; None for collectives, and where no pair differs
    tau: float | None
    inside: float  # share of the measured times inside their 90 % interval
    # factor from the prediction to an end of its interval, the geometric mean; None where an
    # interval reaches 0
    width: float | None
    fit_error: float  # mean error of the same points with the machine's own constants
    large_error: float | None  # of collectives of 64 MiB and more, the mean


@dataclass(frozen=True)
class Means:
    """Means over the folds of a kind; attributes as of `FoldResult`."""

    kind: str
    num_folds: int
    num_points: int
    mean_error: float
    inside: float
    width: float | None
    fit_error: float


@dataclass(frozen=True)
class LeftOut:
    """Result of ``python -m simdp validate --leave-out``."""

    by: str
    """The part left out: ``model``, ``nodes``, ``collective`` or ``cluster``."""
    whole: Validation
    """Of all points; those of a fold as predicted without it."""
    of_points: tuple[HeldOutPoint, ...]
    """One for each of its points and its rows."""
    of_rows: tuple[HeldOutPoint, ...]
    """One for each of its points and its rows."""

    @cached_property
    def validation(self) -> Validation:
        """Points that were left out and are predicted."""
        points = [p for p, at in zip(self.whole.points, self.of_points, strict=True) if _in(at)]
        rows = [row for row, at in zip(self.whole.rows, self.of_rows, strict=True) if _in(at)]
        clusters = {point.cluster for point in (*points, *rows)}
        return replace(
            self.whole,
            points=tuple(points),
            rows=tuple(rows),
            noise={name: noise for name, noise in self.whole.noise.items() if name in clusters},
            excluded=(),
        )

    @cached_property
    def folds(self) -> tuple[FoldResult, ...]:
        """Steps first, then collectives, each in the order of the scenarios."""
        both = (
            ("steps", self.whole.points, self.of_points),
            ("collectives", self.whole.rows, self.of_rows),
        )
        folds = []
        for kind, points, places in both:
            groups: dict[str, list[tuple[TimeComparison, HeldOutPoint]]] = {}
            for point, place in zip(points, places, strict=True):
                if place.fold is not None and place.counts:
                    groups.setdefault(place.fold, []).append((point, place))
            folds += [self._fold(name, kind, group) for name, group in groups.items()]
        return tuple(folds)

    def means(self) -> list[Means]:
        """Return means over the folds of steps, and over those of collectives, if any."""
        means = []
        for kind in ("steps", "collectives"):
            folds = [fold for fold in self.folds if fold.kind == kind]
            if folds:
                widths = [fold.width for fold in folds if fold.width is not None]
                means.append(
                    Means(
                        kind=kind,
                        num_folds=len(folds),
                        num_points=sum(fold.num_points for fold in folds),
                        mean_error=_mean_error([fold.mean_error for fold in folds]),
                        inside=_mean_error([fold.inside for fold in folds]),
                        width=exp(_mean_error([log(width) for width in widths]))
                        if widths
                        else None,
                        fit_error=_mean_error([fold.fit_error for fold in folds]),
                    )
                )
        return means

    def to_json(self) -> str:
        """Write validation.json."""
        whole = self.validation.plain()
        whole |= {
            "leave_out": self.by,
            "folds": [asdict(fold) for fold in self.folds],
            "means": [asdict(record) for record in self.means()],
            "points": _plain(self.whole.points, self.of_points),
            "collective_points": _plain(self.whole.rows, self.of_rows),
            "excluded": [asdict(record) for record in self.whole.excluded],
        }
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def _fold(
        self, name: str, kind: str, group: Sequence[tuple[TimeComparison, HeldOutPoint]]
    ) -> FoldResult:
        points = [point for point, _ in group]
        errors = summary(name, points, max(self.whole.noise[point.cluster] for point in points))
        assert errors.mean_error is not None
        assert errors.worst_error is not None
        assert errors.inside is not None
        fitted = [abs(place.fitted / point.measured - 1) for point, place in group]
        return FoldResult(
            name=name,
            kind=kind,
            num_points=errors.num_predicted,
            mean_error=errors.mean_error,
            worst_error=errors.worst_error,
            tau=errors.tau,
            inside=errors.inside,
            width=_width(points),
            fit_error=_mean_error(fitted),
            large_error=errors.large_error,
        )


def _in(place: HeldOutPoint) -> bool:
    return place.fold is not None and place.counts


def _width(points: Sequence[TimeComparison]) -> float | None:
    if any(point.low <= 0 or point.high <= 0 for point in points):
        return None
    return exp(_mean_error([log(point.high / point.low) / 2 for point in points]))


def _plain(
    points: Sequence[StepComparison] | Sequence[CollectiveComparison],
    places: Sequence[HeldOutPoint],
) -> list[dict[str, Any]]:
    return [
        {**point.plain(), "fold": place.fold, "fitted_s": place.fitted}
        for point, place in zip(points, places, strict=True)
    ]


def _mean_error(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# Reliability --------------------------------------------------------------------------------------

LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95, 0.99)  # nominal shares of the measured times in intervals
INTERVAL_LEVEL = 0.9  # the level of ``low`` and ``high``


class CoverageBin(NamedTuple):
    """Coverage of the intervals of one level."""

    level: float  # the nominal share
    observed: float  # share of the points with a measured time inside
    # low, high: 90 % interval of the share for this number of independent series
    low: float
    high: float


def coverage(points: Sequence[TimeComparison]) -> list[CoverageBin]:
    """Count points in intervals at every level of `LEVELS`.

    Points of one series are not independent; the band counts series.
    """
    count = num_series(points)
    return [
        CoverageBin(
            level,
            sum(holds(point, level) for point in points) / len(points),
            _quantile(0.05, level, count) / count,
            _quantile(0.95, level, count) / count,
        )
        for level in LEVELS
    ]


def num_series(points: Sequence[TimeComparison]) -> int:
    """Count the tables of collectives and the scenarios of steps."""
    return len(
        {
            (point.scenario, point.table if isinstance(point, CollectiveComparison) else None)
            for point in points
        }
    )


def holds(point: TimeComparison, level: float) -> bool:
    """Return whether an interval of another level than 90 % contains the measured time.

    Its ends are those of a log-normal distribution on each side: ``simulated (low / simulated)^k``
    below, where k is the ratio of the levels' quantiles; an end at 0 stays there.
    """
    normal = NormalDist()
    ratio = normal.inv_cdf((1 + level) / 2) / normal.inv_cdf((1 + INTERVAL_LEVEL) / 2)
    low: float = point.simulated * (point.low / point.simulated) ** ratio
    high: float = point.simulated * (point.high / point.simulated) ** ratio
    return low <= point.measured <= high


def _quantile(share: float, level: float, count: int) -> int:
    """Return the fewest successes with a cumulative probability of at least ``share``."""
    total = 0.0
    for k in range(count + 1):
        total += comb(count, k) * level**k * (1 - level) ** (count - k)
        if total >= share:
            return k
    return count
