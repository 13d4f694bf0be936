"""The ring formula, at the links' own figures."""

from __future__ import annotations

from benchmarks.leaderboard.adapters.base import Adapter, Answer
from benchmarks.leaderboard.adapters.figures import device_time
from benchmarks.leaderboard.folds import Asked
from benchmarks.leaderboard.points import Point, wiring
from simdp.studies.validate.jobs import ring_collective_time, ring_exchange_time


class Ring(Adapter):
    """One device's time, and behind it a ring all_reduce; see `simdp.studies.validate.jobs`."""

    name = "ring formula"
    about = (
        "one device's time plus a ring all_reduce of all gradients at the links' bandwidth "
        "(Patarasuk and Yuan, JPDC 2009); for a collective the formula with the links' latency. "
        "Fits nothing."
    )
    missing = "overlap, sharding, messages, the efficiency of links"

    def answers(self, asked: Asked) -> list[Answer | None]:
        """The formula, point by point."""
        times = [self._time(point, asked) for point in asked.questions]
        return [None if time is None else Answer(time) for time in times]

    def _time(self, point: Point, asked: Asked) -> float | None:
        wires = wiring(point)
        if point["kind"] == "collective":
            return ring_collective_time(point["collective"], point["nbytes"], wires)
        compute = device_time(point, asked.shown)
        if compute is None:
            return None
        return compute + ring_exchange_time(point["gradient_bytes"], wires)
