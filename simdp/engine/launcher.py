"""Launcher: starts a run's collectives, and says which of them leave a span per transfer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from simdp.collectives import Collectives, Plan
from simdp.engine.ops import Launch

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
    world_size : int
        Number of ranks.
    """

    def __init__(self, collectives: Collectives, world_size: int) -> None:
        self.collectives, self.world_size = collectives, world_size
        self._num_calls = self._num_recorded = 0

    def plan(self, collective: str, nbytes: float, root: int = 0) -> Plan:
        """Plan a collective, by its key in ``collectives``."""
        plan: Plan = getattr(self.collectives, collective).plan(self.world_size, nbytes, root)
        return plan

    def launch(
        self, step: int, plan: Plan, nbytes: float, label: str
    ) -> Generator[Any, None, Launched]:
        """Start a collective on the communication stream."""
        number = self._num_calls
        self._num_calls += 1
        transfers = int(plan.sends_per_rank.sum())
        record = transfers <= MAX_TRANSFERS_PER_CALL
        record &= self._num_recorded + transfers <= MAX_TRANSFERS_PER_RUN
        self._num_recorded += transfers * record
        yield Launch(step, label, number, plan, nbytes, record)
        return Launched(number)
