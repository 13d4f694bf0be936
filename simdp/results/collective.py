"""CollectiveStudy: what collectives took by themselves, over sizes, algorithms and world sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from simdp.results.bandwidth import bus_bandwidth_factor, count, redop, shown_root


class Bottleneck(NamedTuple):
    """The busiest link.

    Attributes
    ----------
    name : str
        Which.
    utilization : float
        Part of the time for which it would be busy at its full bandwidth; 0 ... 1.
    """

    name: str
    utilization: float


class Crossover(NamedTuple):
    """Where ``auto`` turns to another algorithm.

    Attributes
    ----------
    nbytes : int
        The first size that the new one serves [bytes].
    now, before : str
        The algorithms.
    """

    nbytes: int
    now: str
    before: str


@dataclass(frozen=True)
class CollectivePoint:
    """One collective of one size.

    Attributes
    ----------
    nbytes : int
        The whole buffer, as nccl-tests counts it [bytes].
    seconds : float
        Until the last rank was done [s].
    algorithm : str
        What served it; of ``auto``, the choice.
    fabric : str
        Which clock played it, and why.
    bottleneck : Bottleneck or None
        None where nothing crossed any link.
    candidates : dict of str to float
        What each candidate of ``auto`` is predicted to take [s].
    measured : float or None
        What a real machine took [s].
    low, high : float or None
        Ends of the 90 % interval [s]; None where nothing is known of the constants behind it.
    """

    nbytes: int
    seconds: float
    algorithm: str
    fabric: str
    bottleneck: Bottleneck | None
    candidates: dict[str, float]
    measured: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """Simulated over measured time, less one."""
        return None if self.measured is None else self.seconds / self.measured - 1


@dataclass(frozen=True)
class CollectiveCurve:
    """One algorithm on one number of ranks.

    Attributes
    ----------
    algorithm : str
        What was asked for, ``auto`` for example.
    world_size : int
        Number of ranks.
    points : tuple of CollectivePoint
        By size; at least one.
    """

    algorithm: str
    world_size: int
    points: tuple[CollectivePoint, ...]

    def crossovers(self) -> list[Crossover]:
        """Where the algorithm changes from one size to the next."""
        return [
            Crossover(after.nbytes, after.algorithm, before.algorithm)
            for before, after in pairwise(self.points)
            if after.algorithm != before.algorithm
        ]

    def held(self) -> list[bool]:
        """Whether the interval holds what was measured, wherever there is both."""
        return [
            p.low <= p.measured <= p.high
            for p in self.points
            if p.low is not None and p.high is not None and p.measured is not None
        ]

    def errors(self) -> dict[int, float]:
        """Error of the time at each size that was measured."""
        return {p.nbytes: p.error for p in self.points if p.error is not None}


@dataclass(frozen=True)
class CollectiveStudy:
    """Everything that ``python -m simdp collective`` found.

    Attributes
    ----------
    version : str
        Of simdp.
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    cluster : str
        Its name.
    dtype : str
        As nccl-tests calls it.
    root : int
        For collectives that have one.
    curves : tuple of CollectiveCurve
        World sizes of the first algorithm, then of the second, ...
    against : str or None
        The measured log's file name.
    """

    version: str
    collective: str
    cluster: str
    dtype: str
    root: int
    curves: tuple[CollectiveCurve, ...]
    against: str | None = None

    def algbw(self, nbytes: int, seconds: float) -> float | None:
        """Size over time [bytes/s]; None where nothing is moved or it takes no time."""
        return nbytes / seconds if nbytes and seconds else None

    def busbw(self, nbytes: int, seconds: float, world_size: int) -> float | None:
        """Bus bandwidth [bytes/s]; see `bus_bandwidth_factor`."""
        algbw = self.algbw(nbytes, seconds)
        factor = bus_bandwidth_factor(self.collective, world_size)
        return None if algbw is None or factor is None else algbw * factor

    def columns(self, nbytes: int, world_size: int) -> dict[str, Any]:
        """What nccl-tests prints of a size beside times: count, type, redop, root."""
        return {
            "count": count(self.collective, nbytes, world_size, self.dtype),
            "type": self.dtype,
            "redop": redop(self.collective),
            "root": shown_root(self.collective, self.root),
        }

    def to_json(self) -> str:
        """Write everything; times in seconds, sizes in bytes, bandwidths in bytes per second."""
        whole = {
            "simdp": self.version,
            "collective": self.collective,
            "cluster": self.cluster,
            "against": self.against,
            "curves": [self._curve(curve) for curve in self.curves],
        }
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def _curve(self, curve: CollectiveCurve) -> dict[str, Any]:
        errors = [abs(error) for error in curve.errors().values()]
        return {
            "algorithm": curve.algorithm,
            "world_size": curve.world_size,
            "mean_error": sum(errors) / len(errors) if errors else None,
            "max_error": max(errors, default=None),
            "crossovers": [crossover._asdict() for crossover in curve.crossovers()],
            "points": [self._point(point, curve.world_size) for point in curve.points],
        }

    def _point(self, point: CollectivePoint, world_size: int) -> dict[str, Any]:
        link = point.bottleneck
        return {
            "size_bytes": point.nbytes,
            **self.columns(point.nbytes, world_size),
            "time_s": point.seconds,
            "algbw_bytes_per_s": self.algbw(point.nbytes, point.seconds),
            "busbw_bytes_per_s": self.busbw(point.nbytes, point.seconds, world_size),
            "algorithm": point.algorithm,
            "fabric": point.fabric,
            "bottleneck": None if link is None else link._asdict(),
            "candidates_s": point.candidates or None,
            "low_s": point.low,
            "high_s": point.high,
            "measured_time_s": point.measured,
            "error": point.error,
        }
