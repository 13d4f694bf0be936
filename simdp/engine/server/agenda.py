"""Agenda: what happens when, in the order of time; instants stay as they were worked out.

An event loop that adds up delays would tell two instants apart that are the same but for rounding;
here what falls on one instant is done in one go, in stages, the lower rank first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[float], None]
"""Something that happens; it is told the instant [s]."""

HAPPENS, SHARES, TAKES = 0, 1, 2
"""Stages of an instant: what ranks do; links are shared anew; the server looks at what has come."""


class Agenda:
    """Actions that are due, each at its instant."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int, int, Action]] = []
        self._number = 0

    def at(self, instant: float, action: Action, rank: int = -1, stage: int = HAPPENS) -> None:
        """Do something at an instant [s], after all of earlier stages and of lower ranks there."""
        heappush(self._due, (instant, stage, rank, self._number, action))
        self._number += 1

    def run(self, is_over: Callable[[], bool]) -> float:
        """Do everything that is due until it is over; tell when that was [s]."""
        now = 0.0
        while not is_over():
            assert self._due, "nothing is due, and it is not over"
            now, _, _, _, action = heappop(self._due)
            action(now)
        return now
