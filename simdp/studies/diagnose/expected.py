"""Expected time of a collective on a machine of the catalogue, by its size.

Without a machine, those of the catalogue with the device of the traces are the reference: one of
them is shown, and only a collective that takes longer than on the slowest of them counts as slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simdp.cluster import Cluster
from simdp.cluster.hardware import catalogue_device, is_known, machines_with
from simdp.collectives import FAMILIES
from simdp.collectives.costs import Cost
from simdp.engine.collective import Bench
from simdp.errors import ScenarioError
from simdp.scenario.placement import wiring_of, wiring_of_groups
from simdp.studies.collective import load_clusters, load_cost, make_algorithm, usual_kind
from simdp.studies.methods import machine_with


class CollectiveSize(NamedTuple):
    """Properties of a collective that its time depends on."""

    name: str  # in torch's spelling
    nbytes: float  # of the whole buffer, as nccl-tests counts [bytes]
    ranks: tuple[int, ...]  # ranks of its group


class ExpectedTime(NamedTuple):
    """Expected time of a collective [s]."""

    usual: float  # on the machine, or on the usual one with the device
    longest: float  # on the slowest machine with the device


class ReferenceMachines:
    """A machine, or several, that collectives are compared with.

    Parameters
    ----------
    machine : str or None
        A name of the catalogue, a machine's file, or a scenario.
    device_name : str or None
        Device of the traces, used if no machine is given.
    world_size : int
        Ranks of the job.
    traced : str or None
        Machine of a trace of ours; ignored if it is not in the catalogue, or has no room.

    Raises
    ------
    ScenarioError
        If there is no such machine, or it has no room for so many ranks.

    Attributes
    ----------
    world_size : int
        Ranks of the job.
    name : str or None
        The machine; None if there is none.
    is_given : bool
        Whether it is the job's own.
    source : str
        Reason for this one, or for none.
    """

    def __init__(
        self,
        machine: str | None,
        device_name: str | None,
        world_size: int,
        traced: str | None = None,
    ) -> None:
        source = "which was given"
        if machine is None and traced and is_known(traced) and _if_room(traced, world_size):
            machine, source = traced, "which the traces name"
        self.world_size, self.is_given = world_size, machine is not None
        self._benches: list[tuple[str, Cluster, Cost]] = []
        if machine is not None:
            self._benches = [_loaded(machine, world_size)]
            self.name: str | None = machine
            self.source = source
            return
        self.name, device = None, catalogue_device(device_name)
        if device_name is None:
            self.source = "the traces name no device; --machine says what links should give"
        elif device is None or not (known := machines_with(device)):
            self.source = f"no machine of the catalogue has {device_name}; give --machine"
        else:
            self._benches = [bench for name in known if (bench := _if_room(name, world_size))]
            self._benches.sort(key=lambda bench: bench[0] != _suggested(device))
            self.name = self._benches[0][0] if self._benches else None
            self.source = (
                f"suggested by {device}, of {len(self._benches)} that have it; give --machine"
                if self._benches
                else f"no machine with {device} has room for {world_size} ranks; give --machine"
            )

    @property
    def local_size(self) -> int | None:
        """Ranks of a node of the job's machine; None if that is not known."""
        return self._benches[0][1].local_size if self.is_given else None

    def seconds(self, sizes: Iterable[CollectiveSize]) -> dict[CollectiveSize, ExpectedTime]:
        """Expected times of collectives, without those that no model times [s]."""
        expected = dict[CollectiveSize, ExpectedTime]()
        for size in dict.fromkeys(sizes):
            if size.name not in FAMILIES or len(size.ranks) < 2 or not self._benches:
                continue
            if max(size.ranks) >= self.world_size:
                continue
            times = [_time(cluster, cost, size) for _, cluster, cost in self._benches]
            known = [time for time in times if time is not None]
            if known:
                expected[size] = ExpectedTime(known[0], max(known))
        return expected

    def across(
        self, name: str, nbytes: float, num_nodes: int, per_node: int
    ) -> ExpectedTime | None:
        """Expected time of a collective of ranks on several nodes, as many on each [s].

        None if no machine has such nodes.
        """
        times = []
        for machine, cluster, cost in self._benches:
            wide = cluster.devices_per_node or cluster.local_size
            if wide < per_node:
                continue
            if wide > per_node:
                placed = _if_room(machine, wide * num_nodes)
                if placed is None:
                    continue
                _, cluster, cost = placed
            ranks = [node * wide + rank for node in range(num_nodes) for rank in range(per_node)]
            size = CollectiveSize(name, nbytes, tuple(ranks))
            if (time := _time(cluster, cost, size)) is not None:
                times.append(time)
        return ExpectedTime(times[0], max(times)) if times else None


def _suggested(device: str) -> str | None:
    try:
        return machine_with(device)
    except ScenarioError:
        return None


def _loaded(machine: str, world_size: int) -> tuple[str, Cluster, Cost]:
    try:
        _, clusters = load_clusters(Path(machine), [world_size])
        return machine, clusters[0], load_cost(Path(machine))
    except ScenarioError as error:
        lines = [line.removeprefix("--cluster ") for line in error.problems]
        raise ScenarioError([f"--machine: {line}" for line in lines]) from None


def _if_room(machine: str, world_size: int) -> tuple[str, Cluster, Cost] | None:
    try:
        return _loaded(machine, world_size)
    except ScenarioError:
        return None


def _time(cluster: Cluster, cost: Cost, size: CollectiveSize) -> float | None:
    """Time of a collective on a cluster; None if no model times it [s]."""
    whole = len(size.ranks) == cluster.world_size
    groups = None if whole else np.array([size.ranks], dtype=np.int64)
    if cost.timed:
        nodes = np.bincount(np.array(size.ranks) // cluster.local_size)
        node = set(nodes[nodes > 0].tolist())
        wiring = (
            wiring_of(cluster)
            if groups is None
            else wiring_of_groups(cluster, groups, node.pop() if len(node) == 1 else 0)
        )
        if cost.problem_with(size.name, wiring) is not None:
            return None
        return cost.seconds(size.name, size.nbytes, wiring)
    try:
        bench = Bench(cluster, groups)
        return bench.time(make_algorithm(size.name, usual_kind(size.name)), size.nbytes).seconds
    except ValueError:
        return None
