"""Times of a recorded script's work on other devices, or with other measured times."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from simdp.arrays import Floats
from simdp.engine.compute.profile_times import times_of
from simdp.engine.compute.roofline import Roofline, roofline_of
from simdp.engine.interpreters.costs import Costs
from simdp.engine.ops import CallWork, RecordedPass, UpdateWork
from simdp.scenario.root import Scenario


class Work(Protocol):
    """Consecutive work: calls of passes, bytes moved in memory, and parts of updates."""

    calls: list[CallWork]
    nbytes: float
    updates: list[UpdateWork]


class WorkTimes(NamedTuple):
    """Seconds of each piece of work, shape `(num_works, 1)` or `(num_works, world_size)`.

    ``passes`` without stragglers, which slow them down; ``steady`` is all other work [s].
    """

    passes: Floats
    steady: Floats

    def less(self, other: WorkTimes) -> WorkTimes:
        """The difference [s]."""
        return WorkTimes(self.passes - other.passes, self.steady - other.steady)


class WorkOnDevices:
    """Computes how long the work of a recorded run takes on other devices.

    Parameters
    ----------
    works : sequence of Work
        The recorded work.
    scenario : Scenario
        Of the run.
    costs : Costs
        Of the run.
    """

    def __init__(self, works: Sequence[Work], scenario: Scenario, costs: Costs) -> None:
        self._scenario, self._costs, self._num_works = scenario, costs, len(works)
        numbers: dict[Hashable, int] = {}
        self._passes: list[RecordedPass] = []
        known: dict[int, int] = {}  # many calls share one pass
        entries = list[tuple[int, int, int]]()
        for place, work in enumerate(works):
            for of, call in work.calls:
                if id(of) not in known:
                    known[id(of)] = numbers.setdefault(of.key, len(numbers))
                    if len(numbers) > len(self._passes):
                        self._passes.append(of)
                entries.append((place, known[id(of)], call))
        self._place, self._pass, self._call = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        self._nbytes = np.array([work.nbytes for work in works])[:, None]
        self._updates = [(place, part) for place, work in enumerate(works) for part in work.updates]
        self._first = self._times(scenario)

    def longer(self, other: Scenario) -> WorkTimes:
        """By how much work takes longer with another scenario's devices and measured times."""
        return self._times(other).less(self._first)

    def copying(self, nbytes: float, other: Scenario) -> float:
        """By how much a copy takes longer on the slowest device than in the run [s]."""
        new, first = (roofline_of(scenario.cluster) for scenario in (other, self._scenario))
        slowest = new.moving(nbytes).max() - first.moving(nbytes).max()
        return float(slowest)

    def _times(self, scenario: Scenario) -> WorkTimes:
        costs, roofline = self._costs, roofline_of(scenario.cluster)
        times = times_of(scenario.workload, scenario.strategy, roofline)
        passes = [costs.seconds_of(recorded, times, roofline) for recorded in self._passes]
        same = all(columns.seconds.shape[1] == 1 for columns in passes)
        ranks = slice(1) if same else slice(None)
        kinds, kind = np.unique(
            np.array([columns.column[ranks] for columns in passes]).reshape(len(passes), -1),
            axis=1,
            return_inverse=True,
        )
        seconds = np.zeros((self._num_works, kinds.shape[1]))
        for number, of_passes in enumerate(kinds.T):
            table = np.array([c.seconds[:, at] for c, at in zip(passes, of_passes, strict=True)])
            if len(table):
                weights = table[self._pass, self._call]
                seconds[:, number] = np.bincount(self._place, weights, self._num_works)
        return WorkTimes(seconds[:, kind.reshape(-1)], self._steady(roofline))

    def _steady(self, roofline: Roofline) -> Floats:
        bandwidth = roofline.bandwidth
        if (bandwidth == bandwidth[0]).all():
            bandwidth = bandwidth[:1]
        seconds: Floats = self._nbytes / bandwidth
        parts = {part.name: part for _, part in self._updates}
        busy = {name: self._costs.update_seconds(name, roofline) for name in parts}
        if self._updates:
            seconds = np.repeat(seconds, len(roofline.bandwidth) // seconds.shape[1], axis=1)
        for place, part in self._updates:
            seconds[place] += busy[part.name] * np.array(part.active)
        return seconds
