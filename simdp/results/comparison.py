"""Typed results of compare and compare-results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import hypot
from typing import Any

from simdp.errors import joined, one_line
from simdp.keys import PLAIN_KEYS, short_key, written
from simdp.results.metrics import Metrics, Unit
from simdp.results.result import (
    FAILED,
    Columns,
    Inline,
    as_dataframe,
    as_json,
    columns_of,
    figures_of,
)

# Comparison ---------------------------------------------------------------------------------------

NOISE = 2.0  # standard errors of a difference up to which two means are a tie
ROUNDING = 1e-9  # relative rounding difference of equal throughputs


@dataclass
class ComparedPoint:
    """One point: its settings and its figures."""

    set: dict[str, Any]  # dotted keys and values, as requested
    # further settings, so that every point trains on the same samples
    changed: dict[str, Any] = field(default_factory=dict)
    # None if it could not run, as all following fields but ``problems``
    world_size: int | None = None
    metrics: Metrics | None = None  # the metrics of result.json
    # device_bytes, capacity_bytes: of the device with the least relative headroom: peak memory of
    # its ranks, and its memory [bytes]
    device_bytes: float | None = None
    capacity_bytes: float | None = None
    # largest difference of a weight of rank 0 from that of the first point that has weights, over
    # the largest weight of the same parameter; whether other ranks have the same is
    # ``replicas_identical``. None without numbers, where the two models differ, and where a
    # difference is not finite.
    weights_difference: float | None = None
    # whether that is at most rounding; None if models cannot be compared
    same_weights: bool | None = None
    differing: list[str] = field(default_factory=list)  # parameters with larger differences
    # compared parameters; None if models cannot be compared
    num_parameters: int | None = None
    cost: str | None = None  # cost of its collectives
    # standard error of ``step_time_s``, over the steady steps, where stragglers make them differ by
    # chance [s]; else 0
    step_error_s: float = 0.0
    # bill, target: cost, and time to the target, as ``cost`` and ``target`` of a result; None if
    # not requested
    bill: dict[str, Any] | None = None
    target: dict[str, Any] | None = None
    problems: list[str] = field(
        default_factory=list
    )  # reasons why it could not run; empty if it ran

    @property
    def label(self) -> str:
        """Its settings, in short: ``"fsdp(units=whole), world_size: 8"``."""
        return ", ".join(
            written(value) if key in PLAIN_KEYS else f"{short_key(key)}: {written(value)}"
            for key, value in self.set.items()
        )

    def is_tie(self, other: ComparedPoint) -> bool:
        """Return whether the throughputs of two points differ by at most the noise.

        Noise is twice the standard error of the difference.
        """
        mine, theirs = (p.run_metrics.throughput_samples_per_s or 0.0 for p in (self, other))
        errors = [
            p.step_error_s / p.run_metrics.step_time_s if p.step_error_s else 0.0
            for p in (self, other)
        ]
        noise = NOISE * hypot(mine * errors[0], theirs * errors[1])
        return bool(abs(mine - theirs) <= noise + ROUNDING * max(mine, theirs))

    @property
    def nbytes_sent(self) -> float:
        """Largest number of bytes that a rank sends in a step, for a point that ran."""
        return float(max(self.run_metrics.bytes_sent_per_rank))

    @property
    def run_metrics(self) -> Metrics:
        """Metrics of a point that ran."""
        assert self.metrics is not None
        return self.metrics


@dataclass
class Comparison(Inline):
    """Result of ``python -m simdp compare``."""

    version: str
    """Of simdp."""
    scenario: dict[str, Any]
    """As written in the file, with the settings of all points; loads again."""
    over: dict[str, list[Any]]
    """Dotted keys and the compared values."""
    points: list[ComparedPoint]
    """In the order of the grid, the last key running fastest."""
    notes: list[str]
    """Changes made so that the points are comparable."""

    @property
    def ran(self) -> list[ComparedPoint]:
        """The points that could run."""
        return [point for point in self.points if point.metrics is not None]

    def columns(self) -> Columns:
        """Return a row for each point: settings, figures, and ``failed``, the reason for none."""
        return columns_of(
            point.set | {FAILED: one_line(joined(point.problems))}
            if point.metrics is None
            else point.set
            | {"world_size": point.world_size}
            | figures_of(point.metrics, point.bill, point.target)
            for point in self.points
        )

    def to_dataframe(self) -> Any:
        """Return the columns as a pandas DataFrame; errors as in `Study.to_dataframe`."""
        return as_dataframe(self.columns())

    def to_json(self) -> str:
        """Write comparison.json; times in seconds, sizes in bytes."""
        content = {
            "simdp": self.version,
            "scenario": self.scenario,
            "over": self.over,
            "notes": self.notes,
            "points": [asdict(point) for point in self.points],
        }
        return as_json(content) + "\n"


def ties_of(points: Sequence[ComparedPoint]) -> list[ComparedPoint]:
    """Return the best point, and the points that differ from it only by noise.

    They ran, and fit like the best one; empty without any throughput.
    """
    best = best_of([point.metrics for point in points])
    if best is None:
        return []
    first = points[best]
    fits = first.run_metrics.fits_memory
    return [
        first,
        *(
            other
            for number, other in enumerate(points)
            if number != best
            and other.metrics is not None
            and other.metrics.fits_memory == fits
            and other.is_tie(first)
        ),
    ]


def best_of(points: Sequence[Metrics | None]) -> int | None:
    """Return the number of the point with the most samples per second, preferring those that fit.

    ``points`` are metrics, None for a point that could not run; of equal points the first. None
    without a throughput.
    """
    rates = {
        number: (metrics.fits_memory is not False, metrics.throughput_samples_per_s, -number)
        for number, metrics in enumerate(points)
        if metrics is not None and metrics.throughput_samples_per_s
    }
    return max(rates, key=rates.__getitem__, default=None)


# Difference ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One of the two compared results."""

    name: str  # file or folder, or the scenario's name
    source: str  # ``"result"``; of traces ``"kineto"`` or ``"simdp"``
    version: str | None  # simdp's version that wrote it; None for a trace
    num_points: int  # of a sweep; 1 for a trace
    world_size: int | None  # number of ranks, if equal for all points


@dataclass(frozen=True)
class KeyChange:
    """A key of the scenario that differs, and its effect on a step."""

    key: str  # dotted; for a kind with other options, or a machine with its values, its own
    # a, b: as resolved; None where a scenario has none
    a: Any
    b: Any
    # its effect on a step, mean of both directions [s]; None if not simulated
    seconds: float | None = None
    # from_a, to_b: A with the value of B less A; B less B with the value of A [s]
    from_a: float | None = None
    to_b: float | None = None
    parts: dict[str, float] = field(default_factory=dict)  # ``seconds`` by the part of the step [s]
    # keys that must change with it: ``seconds`` is of all, and given for the first
    together: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartChange:
    """A part of a step's time; those of a point sum to its step."""

    # ``compute_s``, ``update_s``, ``exposed_comm_s``, ``wait_s`` or ``other_s``; compared with a
    # trace, which does not distinguish the optimizer's kernels, ``compute_and_update_s`` in place
    # of the first two
    part: str
    a: float  # a steady step, mean over ranks [s]
    b: float  # a steady step, mean over ranks [s]
    # keys with the largest effect, by simulation; or the only one that differs
    keys: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # value from a trace

    @property
    def seconds(self) -> float:
        """Increase in B [s]."""
        return self.b - self.a


@dataclass(frozen=True)
class Figure:
    """Any other figure of both; None if unknown."""

    name: str
    unit: Unit
    a: float | None  # SI units; sizes in bytes
    b: float | None  # SI units; sizes in bytes


@dataclass(frozen=True)
class PointDifference:
    """Changes at one point."""

    set: dict[str, Any]  # the point's settings of swept keys
    a_s: float  # a steady step [s]
    b_s: float  # a steady step [s]
    # the 90 % interval of A's step, where it is simulated, B is measured and A has one [s]
    interval_s: list[float] | None
    parts: tuple[PartChange, ...]  # largest change first
    figures: tuple[Figure, ...]  # throughput, memory, bytes, money
    keys: tuple[KeyChange, ...]  # largest effect on a step first
    # remainder that no single key explains: interactions, and versions [s]; None if keys were not
    # simulated
    rest_s: float | None = None

    @property
    def seconds(self) -> float:
        """Increase of the step time in B [s]."""
        return self.b_s - self.a_s


@dataclass(frozen=True)
class Difference(Inline):
    """Result of ``python -m simdp compare-results``."""

    version: str
    """Of simdp."""
    a: Side
    """Before and after, or simulated and measured."""
    b: Side
    """Before and after, or simulated and measured."""
    points: tuple[PointDifference, ...]
    """Points of both, in A's order."""
    only_a: tuple[dict[str, Any], ...] = ()
    """Settings of points that the other lacks."""
    only_b: tuple[dict[str, Any], ...] = ()
    """Settings of points that the other lacks."""
    notes: tuple[str, ...] = ()
    """Notes for the reader."""

    def to_json(self) -> str:
        """Return one JSON document; the same input, the same bytes."""
        document: dict[str, Any] = {"simdp": self.version, **asdict(self)}
        del document["version"]
        return as_json(document) + "\n"
