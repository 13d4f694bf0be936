"""Jobs of a validation, step times compared with measurements, and naive predictions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import WAYS
from simdp.engine.recorded_script import Stopwatch
from simdp.engine.reserved import reserved_memory
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.results.validation import Fits, MemoryComparison, NotCompared, StepComparison
from simdp.scenario import load_scenario
from simdp.scenario.loading import load_valid_points
from simdp.scenario.measured import MeasuredMemory, MeasuredPoint, MeasuredScenario
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.strategies.memory import state_on_device
from simdp.studies.intervals import (
    MEMORY_INTERVALS,
    OWN,
    Known,
    machine_calibration,
    scenario_novelty,
    step_interval,
    with_pool,
)

# Naive predictions and steps ----------------------------------------------------------------------


def ring_step_time(point: Scenario, compute: float) -> float:
    """Step time without any overlap: ``compute + 2 (n - 1) / n S / B`` [s].

    Parameters
    ----------
    point : Scenario
        One point; S is the size of its gradients [bytes], B the smaller of a device's bandwidth
        inside its node and a node's bandwidth [bytes/s]. A ring through all ranks crosses every
        link once, including a node's NICs.
    compute : float
        Time of the devices' work in a step [s].

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009.
    """
    wiring, workload = wiring_of(point.cluster), point.workload
    elements = sum(tensor.num_elements for tensor in workload.graph.parameters)
    return compute + ring_exchange_time(elements * workload.gradient_itemsize, wiring)


def ring_exchange_time(nbytes: float, wiring: Wiring) -> float:
    """Time of the gradients' ring all-reduce in `ring_step_time`: ``2 (n - 1) / n S / B`` [s]."""
    n = wiring.world_size
    return 2 * (n - 1) / n * nbytes / min(wiring.intra_bandwidth, wiring.inter_bandwidth)


def ring_collective_time(collective: str, nbytes: float, wiring: Wiring) -> float:
    """Time of the simplest algorithm at the links' data sheet: ``hops alpha + sent S / B`` [s].

    It is a ring, or sends where there is none; the slower of the transfers inside and between nodes
    counts.
    """
    way = next(iter(WAYS[collective].values()))(wiring)
    assert way is not None, "rings and sends serve every wiring"
    latency = way.intra_hops * wiring.intra_alpha + way.inter_hops * wiring.inter_alpha
    inside = way.intra_sent / wiring.intra_bandwidth
    return latency + nbytes * max(inside, way.inter_sent / wiring.inter_bandwidth)


def same_work(point: Scenario) -> str:
    """Key of a point's machine, device and workload, for comparing numbers of ranks."""
    raw = point.resolved()
    cluster = raw["cluster"]
    return json.dumps([cluster.get("machine"), cluster["device"], raw["workload"]])


def add_linear(points: Sequence[StepComparison], work: Sequence[str]) -> list[StepComparison]:
    """Add the prediction of linear scaling: the throughput of fewer ranks, times the ranks.

    The base is the point with the fewest ranks and the same work (`same_work`) on the cluster, else
    with the fewest of the scenario; among equals the same scenario's, then the first. Points
    without a base have None.
    """
    groups: dict[tuple[str, str], list[StepComparison]] = {}
    for point, key in zip(points, work, strict=True):
        groups.setdefault((point.cluster, key), []).append(point)
        groups.setdefault((point.cluster, f"scenario {point.scenario}"), []).append(point)
    points_with_linear = []
    for point, key in zip(points, work, strict=True):
        start = _below(point, groups[point.cluster, key])
        start = start or _below(point, groups[point.cluster, f"scenario {point.scenario}"])
        if start is not None:
            per_rank = start.samples / start.measured / start.world_size
            point = replace(point, linear=point.samples / (per_rank * point.world_size))
        points_with_linear.append(point)
    return points_with_linear


def _below(point: StepComparison, group: Sequence[StepComparison]) -> StepComparison | None:
    """The point of a group with the fewest ranks, own scenario first; None if not fewer."""
    start = min(group, key=lambda at: (at.world_size, at.scenario != point.scenario))
    return start if start.world_size < point.world_size else None


_MEASURED = re.compile(r"^measured\s*:", re.MULTILINE)


def load_measured(paths: Sequence[Path]) -> dict[Path, Scenario]:
    """Load every scenario that has ``measured:``.

    Parameters
    ----------
    paths : sequence of Path
        Files, which must have it; and folders, of which the files with it are taken. Shipped ones
        can be given by name: ``validation/nvidia``.

    Returns
    -------
    dict of Path to Scenario
        In the order of the paths, and by name in a folder.

    Raises
    ------
    ScenarioError
        If any of them is wrong, with the problems of all; or two have the same name.
    """
    scenarios: dict[Path, Scenario] = {}
    first: dict[str, Path] = {}
    lines: list[str] = []
    for file in dict.fromkeys(_files(paths)):
        try:
            scenario = load_scenario(file)
        except ScenarioError as error:
            lines += error.problems
            continue
        if scenario.measured is None:
            lines.append(f"{file}: {NOT_MEASURED}")
        other = first.setdefault(scenario.name, file)
        if other.resolve() != file.resolve():
            lines.append(f"{file}: {_same_name(other, scenario.name)}")
        elif other == file:
            scenarios[file] = scenario
    if lines:
        raise ScenarioError(lines)
    return scenarios


class ValidScenarios(NamedTuple):
    """Scenarios with the valid part of their measurements, and what was wrong.

    ``numbers`` has the numbers in the file of each list's entries, by file and list.
    """

    scenarios: dict[Path, Scenario]
    numbers: dict[str, dict[str, list[int]]]
    wrong: list[NotCompared]

    def in_file(self, problem: NotCompared) -> NotCompared:
        """Name a point by its number in the file."""
        name, _, number = (problem.point or "").partition(".")
        numbers = self.numbers.get(problem.file, {}).get(name)
        return (
            problem if numbers is None else replace(problem, point=f"{name}.{numbers[int(number)]}")
        )


def load_valid(paths: Sequence[Path]) -> ValidScenarios:
    """Load scenarios as `load_measured` does, without wrong points and wrong files of folders.

    Raises
    ------
    ScenarioError
        If a file that is named is wrong as a whole, or nothing remains; with every problem.
    """
    valid = ValidScenarios({}, {}, [])
    first: dict[str, Path] = {}
    lines: list[str] = []
    named = {find(path, folders=True) for path in paths}
    for file in dict.fromkeys(_files(paths, valid.wrong)):
        try:
            scenario, numbers, bad = load_valid_points(file)
            if scenario.measured is None:
                raise ScenarioError(f"{file}: {NOT_MEASURED}")
            other = first.setdefault(scenario.name, file)
            if other.resolve() != file.resolve():
                raise ScenarioError(f"{file}: {_same_name(other, scenario.name)}")
        except ScenarioError as error:
            if file in named:
                lines += error.problems
            else:
                valid.wrong.append(not_compared(str(file), None, error))
            continue
        valid.wrong.extend(NotCompared(str(file), place, why) for place, why in bad.items())
        if other == file:
            valid.scenarios[file] = scenario
            valid.numbers[str(file)] = numbers
    if lines or not valid.scenarios:
        raise ScenarioError(lines + [problem.line for problem in valid.wrong])
    return valid


def not_compared(file: str, point: str | None, error: ScenarioError) -> NotCompared:
    """Record an error of a file or a point in one line."""
    reason = re.sub(rf"^{re.escape(file)}:(\d+):", r"line \1:", error.problems[0])
    reason = reason.removeprefix(f"{file}: ")
    more = len(error.problems) - 1
    more_problems = f" (and {more} more problem{'s' * (more > 1)})" if more else ""
    return NotCompared(file, point, f"{reason}{more_problems}")


NOT_MEASURED = (
    "has no measured: key; add measured: {source: ..., points: [...]}, with the measurements."
)


def _same_name(other: Path, name: str) -> str:
    return f"has the name of {other}, {name}; add another name: ..."


MAX_WALKED = 100_000
"""Most files and folders below a given folder, which take about a second to list."""


def _files(paths: Sequence[Path], unreadable: list[NotCompared] | None = None) -> Iterator[Path]:
    for path in (find(path, folders=True) for path in paths):
        if not path.is_dir():
            yield path
            continue
        having, errors, files, count = list[Path](), list[OSError](), list[Path](), 0
        for place, folders, names in os.walk(path, onerror=errors.append):
            count += len(folders) + len(names)
            if count > MAX_WALKED:
                problem = f"{path}: holds more than {MAX_WALKED:,} files and folders; "
                raise ScenarioError(f"{problem}give the folder of the scenarios.")
            files += [Path(place, name) for name in names if name.endswith(".yaml")]
        closed = [Path(error.filename) for error in errors]
        for file in sorted([*files, *filter(Path.exists, closed)]):  # without those gone meanwhile
            try:
                text = read_text(file)
            except ScenarioError as error:
                if unreadable is None:
                    raise
                unreadable.append(not_compared(str(file), None, error))
                continue
            if _MEASURED.search(text):
                having.append(file)
        if not having:
            raise ScenarioError(f"{path}: holds no scenario with measured: ... in it.")
        yield from having


def cluster_name(scenario: str, point: Scenario) -> str:
    """Name a point's cluster: its machine, else its scenario."""
    machine = point.cluster.machine
    return Path(machine).stem if machine else scenario


STEPS = 2  # one warm-up step and one to measure, where the scenario sets no number


def shortened(point: Scenario) -> Scenario:
    """Reduce a point to `STEPS` steps, unless it sets their number."""
    if point.workload.steps is not None:
        return point
    workload = point.workload.model_copy(update={"steps": STEPS, "epochs": None})
    return point.model_copy(update={"workload": workload})


def time_step(
    name: str,
    measured: MeasuredPoint,
    point: Scenario,
    known: Sequence[Known],
    stopwatch: Stopwatch | None = None,
) -> StepComparison:
    """Simulate a `shortened` point, and compare with the measurement.

    A ``stopwatch`` of the point is reused. A ScenarioError if it cannot be simulated.
    """
    stopwatch = stopwatch or Stopwatch(point)
    metrics = stopwatch.metrics
    time = float(metrics.step_time_s)
    low, high = step_interval(metrics, point, known, stopwatch.step_times)
    n = point.cluster.world_size
    samples = (metrics.throughput_samples_per_s or 0.0) * time
    return StepComparison(
        scenario=name,
        cluster=cluster_name(name, point),
        set=measured.set,
        world_size=n,
        role=measured.role,
        measured=measured.seconds(samples),
        simulated=time,
        low=low,
        high=high,
        note=measured.note,
        samples=samples,
        linear=None,
        ring=ring_step_time(point, metrics.compute_s + metrics.update_s),
        new=scenario_novelty(point, with_pool(known, point)),
        exposed_measured=measured.exposed_sync,
        exposed_simulated=float(metrics.exposed_comm_s + metrics.wait_s),
        fits=_fits(point),
        joined=wiring_of(point.cluster).joined,
    )


def _fits(point: Scenario) -> Fits:
    """Whether the fullest device has room for its ranks."""
    cluster, peaks = point.cluster, memory_needed(point).peak.tolist()
    k, devices = cluster.ranks_per_device, cluster.devices()[:: cluster.ranks_per_device]
    held = [sum(peaks[first : first + k]) for first in range(0, len(peaks), k)]
    peak, device = max(zip(held, devices, strict=True), key=lambda pair: pair[0] / pair[1].memory)
    return state_on_device(peak, cluster.world_size, device.memory)


def compare_memory(name: str, measured: MeasuredMemory, point: Scenario) -> MemoryComparison:
    """Simulate a peak of memory, and compare with the measurement.

    Raises
    ------
    ScenarioError
        If memory depends on the clock.
    """
    cluster = point.cluster
    if point.strategy.has_server:
        raise ScenarioError(
            "memory of a parameter server depends on its clock; leave this point out."
        )
    memory = min(device.memory for device in cluster.devices())
    reserved = reserved_memory(point)
    kind = "reserved" if measured.reserved is not None else "allocated"
    simulated = reserved.reserved if kind == "reserved" else reserved.allocated
    low, high = (simulated * (1 + end) for end in MEMORY_INTERVALS[kind])
    return MemoryComparison(
        scenario=name,
        cluster=cluster_name(name, point),
        set=measured.set,
        world_size=cluster.world_size,
        kind=kind,
        measured=measured.reserved if kind == "reserved" else measured.allocated,
        simulated=simulated,
        low=low,
        high=high,
        capacity=memory,
        fits=state_on_device(reserved.allocated, cluster.world_size, memory),
        note=measured.note,
    )


# Jobs ---------------------------------------------------------------------------------------------

MAX_POINTS = 8  # most points of a job
Intervals = Literal["all", "predicted", "none"]  # points that have an interval


class ValidationGroup(NamedTuple):
    """A job: consecutive points of a scenario that share a machine, one table, or all memory.

    ``first`` is the number of the first point, or of the table. ``only_predicted``: points of other
    roles have no interval.
    """

    file: str
    name: str
    measured: MeasuredScenario
    first: int
    steps: Sequence[Scenario]
    table: Scenario | None
    known: Sequence[Known]
    only_predicted: bool = False
    memory: Sequence[Scenario] = ()

    @property
    def size(self) -> int:
        """Number of points, tables and peaks of memory."""
        return len(self.steps) + (self.table is not None) + len(self.memory)

    @property
    def num_runs(self) -> int:
        """Most runs of the job, including those for intervals."""
        constants = sum(len(source.calibration.intervals) for source in self.known)
        return len(self.steps) * (1 + 2 * constants) + len(self.memory)

    def with_intervals(self, of: Intervals) -> ValidationGroup:
        """The same, with intervals of some points only."""
        known = () if of == "none" else self.known
        return self._replace(known=known, only_predicted=of == "predicted")

    def known_of(self, point: MeasuredPoint) -> Sequence[Known]:
        """Uncertainty of a point's constants; empty where it gets no interval."""
        return () if self.only_predicted and point.role != "predicted" else self.known


def jobs_of(scenarios: Mapping[Path, Scenario]) -> list[ValidationGroup]:
    """Divide scenarios into jobs, in their order; points before tables."""
    machines: dict[tuple[str | None, Path], list[Known]] = {}
    jobs: list[ValidationGroup] = []
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
        for _, group in groupby(numbered, lambda numbered_item: numbered_item[1].cluster.machine):
            for first, steps in _parts(list(group)):
                jobs.append(ValidationGroup(*whole, first, steps, None, known(steps[0])))
        jobs += [ValidationGroup(*whole, i, (), made, known(made)) for i, made in enumerate(tables)]
        memory = list(with_common_workloads(scenario.memory_scenarios()))
        jobs += [ValidationGroup(*whole, 0, (), None, (), memory=memory)] if memory else []
    return jobs


def with_common_workloads(points: Sequence[Scenario]) -> Iterator[Scenario]:
    """Share equal workloads between points, so that their graph is made once."""
    first: dict[str, Scenario] = {}
    for point in map(shortened, points):
        key = json.dumps(point.resolved()["workload"])
        yield point.model_copy(update={"workload": first.setdefault(key, point).workload})


def _parts(group: Sequence[tuple[int, Scenario]]) -> Iterator[tuple[int, list[Scenario]]]:
    for i in range(0, len(group), MAX_POINTS):
        part = group[i : i + MAX_POINTS]
        yield part[0][0], [point for _, point in part]
