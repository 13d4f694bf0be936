"""Search: best bounds first, until no point that is left can be told of.

A point is passed over only where its bounds say that it misses a limit, or where a simulated one
is no worse in time, money and memory than the bounds of this one: what is left out is then neither
on the front nor, by its bound, among the best. So the front is that of all points, but for those
that are equal to one of it in everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.results.plan import GOALS, Option
from simdp.studies.plan.bounds import Bounds
from simdp.studies.plan.chances import LIMITED

NUM_BEST = 5
"""The best, and the next alternatives."""

BATCH = 16
"""Points that are simulated before the others are looked at again: so many for any number of
workers, so that the answer is the same."""

LIMITS = {
    "deadline": "finish_s",
    "budget": "cost_usd",
    "energy": "energy_kwh",
    "memory": "peak_memory_bytes",
}
"""What may be limited, and the field of an option that is."""

FIELDS = {
    "finish_s": "finish",
    "cost_usd": "cost",
    "energy_kwh": "energy",
    "peak_memory_bytes": "memory",
}
"""Fields of an option, and what `Bounds` has of each."""

SAME = 1 + 1e-12
"""Figures that differ by rounding alone miss no limit."""


class Played(NamedTuple):
    """A simulated point.

    Attributes
    ----------
    number : int
        Of the points that may be.
    option : Option
        What came out.
    """

    number: int
    option: Option


Play = Callable[[Sequence[int]], list[Option | None]]
"""Simulates points by their numbers; None of what cannot be."""


class Search:
    """Looks for the best points.

    Parameters
    ----------
    bounds : Bounds
        Of all points.
    goal : str
        A key of `GOALS`.
    limits : mapping of str to float
        By the keys of `LIMITS`; that of memory beside what devices have.
    play : callable
        Simulates.
    margin : callable, optional
        Of a simulated point by its number, what multiplies its time, money and energy before they
        are compared with the limits; 1 or more.

    Attributes
    ----------
    options : dict of int to Option
        All that were simulated.
    pruned : dict of str to int
        How many were not, by why.
    """

    def __init__(
        self,
        bounds: Bounds,
        goal: str,
        limits: Mapping[str, float],
        play: Play,
        margin: Callable[[int], float] | None = None,
    ) -> None:
        self.bounds, self.goal, self.limits, self._play = bounds, goal, dict(limits), play
        self._margin = margin
        self.options: dict[int, Option] = {}
        self.failed: set[int] = set()
        self.pruned: dict[str, int] = {}

    # Bounds --------------------------------------------------------------------------------------

    def least(self, field: str) -> Floats:
        """The bounds of a field of `Option`."""
        found: Floats = getattr(self.bounds, FIELDS[field])
        return found

    def allowed(self, name: str) -> Floats:
        """What a limit leaves each point."""
        limit = self.limits.get(name, inf)
        if name == "memory":
            room: Floats = np.minimum(self.bounds.room, limit)
            return room
        return np.full(len(self.bounds.points), limit)

    def misses(self, number: int, option: Option, without: str | None = None) -> dict[str, float]:
        """What a simulated point has over what it may have, where that is more."""
        found = {}
        for name, field in LIMITS.items():
            value, allowed = option.value(field), float(self.allowed(name)[number])
            if name == without or allowed == inf:
                continue
            if value is not None and self._margin is not None and name in LIMITED:
                value *= self._margin(number)
            if value is None or value > allowed * SAME:
                found[name] = inf if value is None else value / allowed
        return found

    def _may_meet(self, without: str | None = None) -> Bools:
        """Points that by their bounds may meet every limit."""
        found = self.bounds.is_possible.copy()
        for name, field in LIMITS.items():
            if name != without:
                found &= self.least(field) <= self.allowed(name) * SAME
        found &= np.isfinite(self.least(GOALS[self.goal]))
        if self.failed:
            found[list(self.failed)] = False
        return found

    # Searching -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate all that may be on the front or among the best."""
        while True:
            left = self._may_meet() & self._is_needed()
            left[list(self.options)] = False
            numbers = np.flatnonzero(left)
            if not len(numbers):
                break
            self._simulate(self._next(numbers))

    def meeting(self, without: str | None = None) -> list[Played]:
        """Simulated points that meet all limits, the best first."""
        field = GOALS[self.goal]
        found = [
            Played(number, option)
            for number, option in self.options.items()
            if not self.misses(number, option, without) and option.value(field) is not None
        ]
        return sorted(found, key=lambda one: (one.option.value(field) or 0.0, one.number))

    def front(self) -> list[Played]:
        """Those that none is better than in everything, the fastest first."""
        found = self.meeting()
        values = np.array([_ways(one.option) for one in found]).reshape(-1, 3)
        kept = []
        for number, one in enumerate(found):
            no_worse = (values <= values[number]).all(axis=1)
            better = no_worse & (values < values[number]).any(axis=1)
            equal = no_worse & ~better
            if not better.any() and int(np.flatnonzero(equal)[0]) == number:
                kept.append(one)
        return sorted(kept, key=lambda one: (_ways(one.option), one.number))

    def without(self, name: str) -> Played | None:
        """The best point if a limit were not there; None where none is better for that."""
        field = GOALS[self.goal]
        while True:
            found = self.meeting(name)
            least = self.least(field)
            left = self._may_meet(name)
            left[list(self.options)] = False
            if found:
                best = found[0].option.value(field)
                assert best is not None
                left &= least < best
            numbers = np.flatnonzero(left)
            if not len(numbers):
                return found[0] if found else None
            order = np.lexsort((numbers, least[numbers]))
            self._simulate(numbers[order[: BATCH // 4]])

    def nearest(self) -> Played | None:
        """The point whose largest miss is smallest."""
        miss = np.zeros(len(self.bounds.points))
        for name, field in LIMITS.items():
            allowed = self.allowed(name)
            known = np.isfinite(allowed)
            miss[known] = np.maximum(miss[known], self.least(field)[known] / allowed[known])
        miss[~self.bounds.is_possible] = inf
        while True:
            found = [
                (max(self.misses(number, option).values(), default=1.0), number)
                for number, option in self.options.items()
            ]
            best = min(found, default=(inf, -1))
            left = miss < best[0]
            left[[*self.options, *self.failed]] = False
            numbers = np.flatnonzero(left)
            if not len(numbers):
                return None if best[0] == inf else Played(best[1], self.options[best[1]])
            order = np.lexsort((numbers, miss[numbers]))
            self._simulate(numbers[order[: BATCH // 4]])

    def _simulate(self, numbers: Ints) -> None:
        for number, option in zip(numbers.tolist(), self._play(numbers.tolist()), strict=True):
            if option is None:
                self.failed.add(number)
            else:
                self.options[number] = option

    def _is_needed(self) -> Bools:
        """Points that by their bounds may be told of."""
        found = self.meeting()
        field = GOALS[self.goal]
        if len(found) >= NUM_BEST:
            last = found[NUM_BEST - 1].option.value(field)
            assert last is not None
            needed: Bools = self.least(field) < last
        else:
            needed = np.ones(len(self.bounds.points), dtype=np.bool_)
        open_: Bools = needed | ~self._is_worse([one.option for one in found])
        return open_

    def _is_worse(self, options: Sequence[Option]) -> Bools:
        """Points whose bounds are no better than a simulated one, in time, money and memory."""
        time, cost, memory = (
            self.least(field) for field in ("finish_s", "cost_usd", "peak_memory_bytes")
        )
        found = np.zeros(len(time), dtype=np.bool_)
        for option in options:
            t, c, m = _ways(option)
            found |= (time >= t) & (cost >= c) & (memory >= m)
        return found

    def _next(self, numbers: Ints) -> Ints:
        """Whom to simulate next: the best by the goal's bound, then the front of the bounds."""
        least = self.least(GOALS[self.goal])[numbers]
        ways = np.stack(
            [self.least(f)[numbers] for f in ("finish_s", "cost_usd", "peak_memory_bytes")], axis=1
        )
        order = np.lexsort((numbers, ways[:, 2], ways[:, 1], least))
        chosen: list[int] = []
        for place in order.tolist():
            mine = ways[place]
            if any((ways[other] <= mine).all() for other in chosen):
                continue
            chosen.append(place)
            if len(chosen) == BATCH:
                break
        return numbers[chosen]

    def count(self) -> None:
        """Say why the others were not simulated."""
        rest = np.ones(len(self.bounds.points), dtype=np.bool_)
        rest[list(self.options)] = False
        impossible = ~self.bounds.is_possible
        impossible[list(self.failed)] = True
        self.pruned["impossible"] = int((rest & impossible).sum())
        rest &= ~impossible
        for name in ("memory", "deadline", "budget", "energy"):
            over = rest & (self.least(LIMITS[name]) > self.allowed(name) * SAME)
            self.pruned[name] = int(over.sum())
            rest &= ~over
        self.pruned["worse"] = int(rest.sum())


def _ways(option: Option) -> tuple[float, float, float]:
    """Time, money and memory; what nobody has a price for is as dear as can be."""
    cost = inf if option.cost_usd is None else option.cost_usd
    return option.finish_s, cost, option.peak_memory_bytes
