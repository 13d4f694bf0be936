"""Typed results of a validation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import comb, exp, lgamma, log, log1p
from statistics import NormalDist
from typing import Any, NamedTuple

from simdp.results.result import Inline

# Validation ---------------------------------------------------------------------------------------

LARGE_NBYTES = 64 * 2**20
"""From here on bandwidth decides the time of a collective [bytes]."""

LEVEL, SIGNIFICANT = 0.9, 0.05
"""Share of measured times that intervals are to hold; probability below which a share is not it."""


@dataclass(frozen=True)
class TimeComparison:
    """A measured time and a simulated one.

    Attributes
    ----------
    scenario, cluster : str
        Path in the file, and group of the measurement: ``measured.cluster``, else the machine, else
        the scenario.
    set : dict
        The point's settings in the scenario.
    world_size : int
        Number of ranks.
    role : str
        ``"predicted"``, or ``"calibration"`` where constants were fitted to it.
    measured, simulated : float
        Times [s].
    low, high : float
        The 90 % interval of the simulated time [s].
    note : str or None
        Effect that the simulation lacks here.
    joined : str
        Class of the network that joins the ranks, such as ``"nvlink"`` or ``"tcp"``, of
        `simdp.collectives.costs.nccl`; of several nodes that between them. Empty for one rank.
    """

    scenario: str
    cluster: str
    set: dict[str, Any]
    world_size: int
    role: str
    measured: float
    simulated: float
    low: float
    high: float
    note: str | None
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
        """As plain data, with the error."""
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


@dataclass(frozen=True)
class StepComparison(TimeComparison):
    """A step.

    Attributes
    ----------
    samples : float
        Of all ranks.
    linear : float or None
        Step time of a naive predictor: the throughput of fewer ranks that were measured, grown
        linearly [s]. None where there are none.
    ring : float
        Step time of another one: the simulated compute, and behind it a ring all_reduce of all
        gradients at the links' bandwidth [s].
    exposed_measured : float or None
        Wait for gradients after backward; None if not measured [s].
    exposed_simulated : float
        The simulated step's ``exposed_comm`` and ``wait`` [s].
    new : tuple of str
        Property that no step of the machine's fit had: ``model``, ``nodes``, ``network``.
    """

    samples: float
    linear: float | None
    ring: float
    exposed_measured: float | None = None
    exposed_simulated: float = 0.0
    new: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveComparison(TimeComparison):
    """One size of a collective.

    Attributes
    ----------
    collective : str
        Which.
    table : int
        Number of its table in the scenario, from 0.
    nbytes : int
        As nccl-tests counts it [bytes].
    new : tuple of str
        Property that no table of the machine's fit had: ``collective``, ``nodes``, ``network``.
    ring : float or None
        Time of a naive predictor: the ring formula with the links' latency and bandwidth [s].
    """

    collective: str
    table: int
    nbytes: int
    new: tuple[str, ...] = ()
    ring: float | None = None


@dataclass(frozen=True)
class Excluded:
    """A point of the source that was left out, and why."""

    scenario: str
    cluster: str
    set: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of the predicted points of a cluster, a scenario or a table; None without any.

    Attributes
    ----------
    name : str
        Of the cluster, or of the scenario.
    num_points, num_predicted : int
        All points; the points outside the fit, the only ones counted below.
    mean_error, worst_error : float or None
        Of the time, absolute.
    noise : float
        Error from measurement noise, a lower bound for any model.
    tau : float or None
        Kendall's rank correlation of steps, over pairs that differ by more than the noise and are
        not both calibration.
    inside : float or None
        Share of the measured times inside their 90 % interval.
    linear_error, ring_error : float or None
        Mean absolute errors of the naive predictors; for collectives only the ring.
    large_error : float or None
        Of collectives of 64 MiB and more, the mean.
    """

    name: str
    num_points: int
    num_predicted: int
    mean_error: float | None
    worst_error: float | None
    noise: float
    tau: float | None
    inside: float | None
    linear_error: float | None
    ring_error: float | None
    large_error: float | None

    @property
    def loses_to_ring(self) -> bool:
        """Whether the ring formula is nearer to the measured times, by more than the noise."""
        if self.mean_error is None or self.ring_error is None:
            return False
        return self.mean_error - self.ring_error > self.noise


@dataclass(frozen=True)
class Coverage:
    """How many measured times lie in their 90 % intervals.

    Attributes
    ----------
    what : str
        ``"steps"`` or ``"collectives"``.
    inside, num_points : int
        Times in their interval; all predicted ones.
    """

    what: str
    inside: int
    num_points: int

    @property
    def share(self) -> float:
        """Share inside."""
        return self.inside / self.num_points

    @property
    def is_too_low(self) -> bool:
        """Whether so few would lie inside by chance in fewer than one case in twenty.

        A binomial test, one-sided, as if points were independent.
        """
        return binomial_tail(self.inside, self.num_points, LEVEL) < SIGNIFICANT


def binomial_tail(most: int, num_trials: int, chance: float) -> float:
    """Probability of at most so many successes of independent trials."""
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
    """Everything that ``python -m simdp validate`` found.

    Attributes
    ----------
    version : str
        Of simdp.
    points : tuple of StepComparison
        Steps, in the order of the scenarios.
    rows : tuple of CollectiveComparison
        Collectives by size, in the order of the scenarios.
    noise : dict of str to float
        By cluster.
    sources : dict of str to str
        Where the figures come from, by scenario.
    excluded : tuple of Excluded
        Excluded points.
    """

    version: str
    points: tuple[StepComparison, ...]
    rows: tuple[CollectiveComparison, ...]
    noise: dict[str, float]
    sources: dict[str, str]
    excluded: tuple[Excluded, ...] = ()

    @property
    def clusters(self) -> list[str]:
        """Every cluster, in the order of the scenarios."""
        return list(self.noise)

    def of(self, cluster: str) -> Validation:
        """Only measurements on one cluster."""
        return replace(
            self,
            points=tuple(point for point in self.points if point.cluster == cluster),
            rows=tuple(row for row in self.rows if row.cluster == cluster),
            noise={cluster: self.noise[cluster]},
            excluded=tuple(one for one in self.excluded if one.cluster == cluster),
        )

    def tables(self) -> list[tuple[CollectiveComparison, ...]]:
        """Rows table by table."""
        found: dict[tuple[str, int], list[CollectiveComparison]] = {}
        for row in self.rows:
            found.setdefault((row.scenario, row.table), []).append(row)
        return [tuple(rows) for rows in found.values()]

    def step_summaries(self) -> list[ErrorSummary]:
        """Errors of steps for each cluster with measured steps."""
        parts = [(cluster, self.of(cluster).points) for cluster in self.clusters]
        return [summary(name, points, self.noise[name]) for name, points in parts if points]

    def overall(self) -> ErrorSummary | None:
        """Errors of all steps, unordered across clusters; None without any."""
        if not self.points:
            return None
        least = min(self.noise[point.cluster] for point in self.points)
        return replace(summary("all clusters", self.points, least), tau=None)

    def scenario_summaries(self, cluster: str) -> list[ErrorSummary]:
        """Errors of the steps on one cluster, scenario by scenario."""
        groups: dict[str, list[StepComparison]] = {}
        for point in self.of(cluster).points:
            groups.setdefault(point.scenario, []).append(point)
        return [summary(name, group, self.noise[cluster]) for name, group in groups.items()]

    def collective_summaries(self) -> list[ErrorSummary]:
        """Errors of the tables of each cluster with any; means over its tables."""
        found = []
        for cluster in self.clusters:
            part = self.of(cluster)
            if not part.rows:
                continue
            noise = part.noise[cluster]
            each = [summary(cluster, rows, noise) for rows in part.tables()]
            mean = _mean(one.mean_error for one in each)
            large = _mean(one.large_error for one in each)
            whole = summary(cluster, part.rows, noise)
            ring = _mean(one.ring_error for one in each)
            found.append(replace(whole, mean_error=mean, large_error=large, ring_error=ring))
        return found

    def coverages(self) -> list[Coverage]:
        """How many predicted steps, and sizes of collectives, lie in their 90 % intervals."""
        found = []
        both: tuple[tuple[str, Sequence[TimeComparison]], ...]
        both = (("steps", self.points), ("collectives", self.rows))
        for what, every in both:
            inside = [one.is_inside for one in every if one.is_predicted]
            if inside:
                found.append(Coverage(what, sum(inside), len(inside)))
        return found

    def beyond(self, limit: float) -> list[tuple[str, str, float]]:
        """Clusters whose predicted points have a larger mean error.

        Returns
        -------
        list of (str, str, float)
            The cluster, ``"steps"`` or ``"collectives"``, and the error.
        """
        both = (("steps", self.step_summaries()), ("collectives", self.collective_summaries()))
        return [
            (one.name, what, one.mean_error)
            for what, summaries in both
            for one in summaries
            if one.mean_error is not None and one.mean_error > limit
        ]

    def to_json(self) -> str:
        """Write validation.json."""
        return json.dumps(self.plain(), indent=1, allow_nan=False) + "\n"

    def plain(self) -> dict[str, Any]:
        """Content of validation.json."""
        overall = self.overall()
        return {
            "simdp": self.version,
            "overall": None if overall is None else asdict(overall),
            "clusters": [asdict(one) for one in self.step_summaries()],
            "scenarios": [
                {"cluster": cluster, **asdict(one)}
                for cluster in self.clusters
                for one in self.scenario_summaries(cluster)
            ],
            "collectives": [asdict(one) for one in self.collective_summaries()],
            "points": [point.plain() for point in self.points],
            "collective_points": [row.plain() for row in self.rows],
            "excluded": [asdict(one) for one in self.excluded],
            "sources": self.sources,
        }


def summary(name: str, points: Sequence[TimeComparison], noise: float) -> ErrorSummary:
    """Summarise the errors of points.

    Parameters
    ----------
    name : str
        Of the cluster, or of the scenario.
    points : sequence of Comparison
        All steps, or all rows of a table.
    noise : float
        Relative.
    """
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
        ring_error=_mean(_off(one.ring, one.measured) for one in both),
        large_error=_mean(abs(row.error) for row in rows if row.nbytes >= LARGE_NBYTES),
    )


def kendall_tau(points: Sequence[TimeComparison], noise: float) -> float | None:
    """How well simulated times put measured ones in order.

    Parameters
    ----------
    points : sequence of Comparison
        Pairs count if their measured times differ by more than the noise, and one of them or both
        are predicted.
    noise : float
        Relative.

    Returns
    -------
    float or None
        ``(concordant - discordant) / pairs``, between -1 and 1; None without any pair.

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
    """The fold of a point, and its prediction from the whole fit.

    Attributes
    ----------
    fold : str or None
        Which fold; None where nothing could be left out.
    counts : bool
        Whether it is predicted: a step that the workload was made to meet is not.
    fitted : float
        Time by the machine's own entry [s].
    """

    fold: str | None
    counts: bool
    fitted: float


@dataclass(frozen=True)
class FoldResult:
    """Errors of the left-out points of a fold.

    Attributes
    ----------
    name : str
        The part left out, of which cluster.
    kind : {"steps", "collectives"}
        Type of its points.
    num_points : int
        Predicted ones, the only ones counted below.
    mean_error, worst_error : float
        Of the time, absolute.
    tau : float or None
        Kendall's rank correlation of steps; None for collectives, and where no pair differs.
    inside : float
        Share of the measured times inside their 90 % interval.
    width : float or None
        Factor from the prediction to an end of its interval, the geometric mean; None where an
        interval reaches 0.
    fit_error : float
        Mean error of the same points with the machine's own constants.
    large_error : float or None
        Of collectives of 64 MiB and more, the mean.
    """

    name: str
    kind: str
    num_points: int
    mean_error: float
    worst_error: float
    tau: float | None
    inside: float
    width: float | None
    fit_error: float
    large_error: float | None


@dataclass(frozen=True)
class Means:
    """Means over the folds of a kind; attributes as of `Fold`."""

    kind: str
    num_folds: int
    num_points: int
    mean_error: float
    inside: float
    width: float | None
    fit_error: float


@dataclass(frozen=True)
class LeftOut:
    """Everything that ``python -m simdp validate --leave-out`` found.

    Attributes
    ----------
    by : str
        The part left out: ``model``, ``nodes``, ``collective`` or ``cluster``.
    whole : Validation
        Of all points; those of a fold as they are predicted without it.
    of_points, of_rows : tuple of Place
        One for each of its points and its rows.
    """

    by: str
    whole: Validation
    of_points: tuple[HeldOutPoint, ...]
    of_rows: tuple[HeldOutPoint, ...]

    @cached_property
    def validation(self) -> Validation:
        """Only points that were left out and are predicted."""
        points = [p for p, at in zip(self.whole.points, self.of_points, strict=True) if _in(at)]
        rows = [row for row, at in zip(self.whole.rows, self.of_rows, strict=True) if _in(at)]
        clusters = {one.cluster for one in (*points, *rows)}
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
        found = []
        for kind, points, places in both:
            groups: dict[str, list[tuple[TimeComparison, HeldOutPoint]]] = {}
            for point, place in zip(points, places, strict=True):
                if place.fold is not None and place.counts:
                    groups.setdefault(place.fold, []).append((point, place))
            found += [self._fold(name, kind, group) for name, group in groups.items()]
        return tuple(found)

    def means(self) -> list[Means]:
        """Over the folds of steps, and over those of collectives, where there are any."""
        found = []
        for kind in ("steps", "collectives"):
            folds = [fold for fold in self.folds if fold.kind == kind]
            if folds:
                widths = [fold.width for fold in folds if fold.width is not None]
                found.append(
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
        return found

    def to_json(self) -> str:
        """Write validation.json."""
        whole = self.validation.plain()
        whole |= {
            "leave_out": self.by,
            "folds": [asdict(fold) for fold in self.folds],
            "means": [asdict(one) for one in self.means()],
            "points": _plain(self.whole.points, self.of_points),
            "collective_points": _plain(self.whole.rows, self.of_rows),
            "excluded": [asdict(one) for one in self.whole.excluded],
        }
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def _fold(
        self, name: str, kind: str, group: Sequence[tuple[TimeComparison, HeldOutPoint]]
    ) -> FoldResult:
        points = [point for point, _ in group]
        noise = max(self.whole.noise[point.cluster] for point in points)
        found = summary(name, points, noise)
        assert found.mean_error is not None
        assert found.worst_error is not None
        assert found.inside is not None
        fitted = [abs(place.fitted / point.measured - 1) for point, place in group]
        return FoldResult(
            name=name,
            kind=kind,
            num_points=found.num_predicted,
            mean_error=found.mean_error,
            worst_error=found.worst_error,
            tau=found.tau,
            inside=found.inside,
            width=_width(points),
            fit_error=_mean_error(fitted),
            large_error=found.large_error,
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

LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95, 0.99)
"""Nominal shares of the measured times that intervals are to hold."""

TOLD = 0.9
"""The level of ``low`` and ``high``."""


class CoverageBin(NamedTuple):
    """Coverage of the intervals of one level.

    Attributes
    ----------
    level : float
        The nominal share.
    observed : float
        The share of the points whose measured time lies inside.
    low, high : float
        Between these the share of as many independent series lies in nine cases of ten, if the
        level is right.
    """

    level: float
    observed: float
    low: float
    high: float


def coverage(points: Sequence[TimeComparison]) -> list[CoverageBin]:
    """Count at every level of `LEVELS`.

    Parameters
    ----------
    points : sequence of Comparison
        One or more. Those of one series are not independent; the band counts series.
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
    """Count the tables of collectives, and of steps the scenarios."""
    return len(
        {
            (one.scenario, one.table if isinstance(one, CollectiveComparison) else None)
            for one in points
        }
    )


def holds(point: TimeComparison, level: float) -> bool:
    """Whether an interval of another level than 90 % holds the measured time.

    Its ends are those of a log-normal distribution on each side: ``simulated (low / simulated)^k``
    below, where k is the ratio of the levels' quantiles; an end at 0 stays there.
    """
    normal = NormalDist()
    ratio = normal.inv_cdf((1 + level) / 2) / normal.inv_cdf((1 + TOLD) / 2)
    low: float = point.simulated * (point.low / point.simulated) ** ratio
    high: float = point.simulated * (point.high / point.simulated) ** ratio
    return low <= point.measured <= high


def _quantile(share: float, level: float, count: int) -> int:
    """The smallest number of successes that is reached with a chance of ``share`` or more."""
    total = 0.0
    for k in range(count + 1):
        total += comb(count, k) * level**k * (1 - level) ** (count - k)
        if total >= share:
            return k
    return count
