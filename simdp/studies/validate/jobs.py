"""Jobs: what a process is given at a time, a few points of a scenario or one table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from simdp.scenario import Scenario
from simdp.scenario.measured import Measured, MeasuredPoint
from simdp.studies.validate.intervals import OWN, Known, machine_calibration
from simdp.studies.validate.steps import shortened

MAX_POINTS = 8
"""Points of one job."""

Intervals = Literal["all", "predicted", "none"]
"""Which points have an interval."""


class Job(NamedTuple):
    """Some points of a scenario that have their machine in common, or one table.

    Attributes
    ----------
    file : str
        The scenario's, for messages.
    name : str
        The scenario's.
    measured : Measured
        All that it says was measured.
    first : int
        Number of the first point, or of the table.
    steps : sequence of Scenario
        Points, one after the other.
    table : Scenario or None
        With what a table sets.
    known : sequence of Known
        How well the constants are known.
    only_predicted : bool
        Whether points of other roles have no interval.
    """

    file: str
    name: str
    measured: Measured
    first: int
    steps: Sequence[Scenario]
    table: Scenario | None
    known: Sequence[Known]
    only_predicted: bool = False

    @property
    def size(self) -> int:
        """Number of points and tables."""
        return len(self.steps) + (self.table is not None)

    @property
    def num_runs(self) -> int:
        """The most runs that it takes, with those for intervals."""
        constants = sum(len(one.calibration.intervals) for one in self.known)
        return len(self.steps) * (1 + 2 * constants)

    def with_intervals(self, of: Intervals) -> Job:
        """The same, with intervals of some points alone."""
        return self._replace(
            known=() if of == "none" else self.known, only_predicted=of == "predicted"
        )

    def known_of(self, point: MeasuredPoint) -> Sequence[Known]:
        """How well the constants of one point are known; nothing where nobody asks for that."""
        return () if self.only_predicted and point.role != "predicted" else self.known


def jobs_of(scenarios: Mapping[Path, Scenario]) -> list[Job]:
    """Cut scenarios into jobs, in their order; points before tables."""
    machines: dict[tuple[str | None, Path], list[Known]] = {}
    jobs: list[Job] = []
    for file, scenario in scenarios.items():
        measured, (points, tables) = scenario.measured, scenario.measured_scenarios()
        assert measured is not None
        own = [] if measured.calibration is None else [Known(OWN, measured.calibration)]

        def known(point: Scenario, own: list[Known] = own) -> list[Known]:
            key = point.cluster.machine, point.base
            if key not in machines:
                machines[key] = machine_calibration(*key)
            return own + machines[key]

        whole = str(file), scenario.name, measured
        numbered = enumerate(with_common_workloads(points))
        for _, group in groupby(numbered, lambda one: one[1].cluster.machine):
            for first, steps in _parts(list(group)):
                jobs.append(Job(*whole, first, steps, None, known(steps[0])))
        jobs += [Job(*whole, i, (), table, known(table)) for i, table in enumerate(tables)]
    return jobs


def with_common_workloads(points: Sequence[Scenario]) -> Iterator[Scenario]:
    """Give equal workloads to points that have them, so that their graph is made once."""
    first: dict[str, Scenario] = {}
    for point in map(shortened, points):
        key = json.dumps(point.resolved()["workload"])
        yield point.model_copy(update={"workload": first.setdefault(key, point).workload})


def _parts(group: Sequence[tuple[int, Scenario]]) -> Iterator[tuple[int, list[Scenario]]]:
    for i in range(0, len(group), MAX_POINTS):
        part = group[i : i + MAX_POINTS]
        yield part[0][0], [point for _, point in part]
