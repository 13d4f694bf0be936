"""Launcher: starts a run's collectives, and says which of them leave a span per transfer."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, NamedTuple

from simdp.collectives import Collectives, Part, Plan
from simdp.engine.choice import Planner
from simdp.engine.network.sharing import meeting
from simdp.engine.ops import Launch
from simdp.wiring import wiring_of

MAX_TRANSFERS_PER_CALL = 2_000
MAX_TRANSFERS_PER_RUN = 100_000
"""A collective's transfers get spans of their own while there are no more than these."""


class Launched(NamedTuple):
    """A collective under way, by its number."""

    number: int


class Launcher:
    """Numbers the collectives of a run.

    Parameters
    ----------
    collectives : Collectives
        The algorithms.
    planner : Planner
        Plans them for the cluster.

    Attributes
    ----------
    num_calls : int
        Collectives started so far.
    told : dict of (str, float) to float
        What the cost was asked, a collective and its size [bytes], and what it told [s].
    """

    def __init__(self, collectives: Collectives, planner: Planner) -> None:
        self.collectives, self.planner = collectives, planner
        self.num_calls = 0
        self.told: dict[tuple[str, float], float] = {}
        cluster = planner.cluster
        self._wiring = wiring_of(cluster) if collectives.cost.timed else None
        self._message = cluster.overheads.before_collective(cluster.world_size)
        self._num_recorded = 0

    def plan(self, collective: str, nbytes: float, root: int = 0) -> Plan:
        """Plan a collective, by its key in ``collectives``."""
        return self.planner.plan(getattr(self.collectives, collective), nbytes, root)

    def launch(
        self, step: int, plan: Plan, nbytes: float, label: str, wait: float = 0.0
    ) -> Generator[Any, None, Launched]:
        """Start a collective on the communication stream, after ``wait`` seconds."""
        number = self.num_calls
        self.num_calls += 1
        transfers = plan.num_transfers
        record = transfers <= MAX_TRANSFERS_PER_CALL and not _overlapping(plan)
        record &= self._num_recorded + transfers <= MAX_TRANSFERS_PER_RUN
        self._num_recorded += transfers * record
        seconds = self._seconds(plan, nbytes)
        record &= seconds is None
        yield Launch(step, label, number, plan, nbytes, record, 0, wait, self._message, seconds)
        return Launched(number)

    def predicted(self, collective: str, nbytes: float) -> float:
        """What a collective takes if every rank enters at once, with nothing beside it [s]."""
        seconds = self._seconds(self.plan(collective, nbytes), nbytes)
        if seconds is None:
            seconds = self.planner.seconds(getattr(self.collectives, collective), nbytes)
        return self._message + seconds

    def _seconds(self, plan: Plan, nbytes: float) -> float | None:
        """How long a collective takes, where its cost tells [s]."""
        if self._wiring is None:
            return None
        seconds = self.collectives.cost.seconds(plan.collective, nbytes, self._wiring)
        self.told[plan.collective, nbytes] = seconds
        return seconds


@lru_cache(maxsize=256)
def _overlapping(plan: Plan) -> bool:
    """Whether two transfers from one rank to another may be under way at the same time."""
    parts = plan.everything
    known: dict[tuple[Plan, int], frozenset[tuple[int, int]]] = {}
    keys = [(part.plan, id(part.members)) for part in parts]
    for part, key in zip(parts, keys, strict=True):
        if key not in known:
            known[key] = _pairs(part)
    return any(known[one] & known[other] for one, other in meeting(parts, keys))


def _pairs(part: Part) -> frozenset[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for moves in part.moves():
        found.update(zip(moves.src.tolist(), moves.dst.tolist(), strict=True))
    return frozenset(found)
