"""Links: how long copies and collectives take between the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.collectives.copies import copies_from, copies_to
from simdp.distributed.clusters import find
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.programs.timing import GroupTimes
from simdp.engine.slowdown import Slowdown
from simdp.errors import ProgramError, ScenarioError
from simdp.results.trace import TraceBuilder


class Links:
    """What lies between the devices of a node, as one process uses them.

    Parameters
    ----------
    cluster : Cluster
        Of the program; a rank of it is a process.
    count : int
        Devices of the node.
    collectives : Collectives
        Of the backend ``nccl``.

    Raises
    ------
    ProgramError
        If the cluster has no node of so many devices.
    """

    def __init__(self, cluster: Cluster, count: int, collectives: Collectives) -> None:
        try:
            self._node = find(cluster, count).cluster
        except ScenarioError as error:
            raise ProgramError(
                f"a node of {count} devices for one process: {error}; choose another --cluster."
            ) from None
        self._count, self._collectives = count, collectives
        self._groups: dict[tuple[int, ...], GroupTimes] = {}
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...], float], float] = {}

    def copy(self, source: int, target: int, nbytes: float) -> float:
        """Time to copy from one device to another [s]."""
        pieces = tuple(int(place == target) for place in range(self._count))
        return self._copies("scatter", source, pieces, nbytes)

    def scatter(self, root: int, pieces: Sequence[int], nbytes: float) -> float:
        """Time in which a device gives each other one its piece of a buffer, one by one [s].

        Parameters
        ----------
        root : int
            Who has the buffer.
        pieces : sequence of int
            How many equal parts each device gets.
        nbytes : float
            Of the buffer.
        """
        return self._copies("scatter", root, tuple(pieces), nbytes)

    def gather(self, root: int, pieces: Sequence[int], nbytes: float) -> float:
        """Time in which a device gets every other one's piece, as `scatter` [s]."""
        return self._copies("gather", root, tuple(pieces), nbytes)

    def collective(self, name: str, root: int, places: Sequence[int], nbytes: float) -> float:
        """Time of a broadcast from, or a reduce to, a device, over some of them [s]."""
        members = (root, *[place for place in places if place != root])
        key = (name, members, (), nbytes)
        if key not in self._known:
            if members not in self._groups:
                self._groups[members] = GroupTimes(self._node, self._collectives, members)
            group = self._groups[members]
            served = group.served(name, nbytes, 0)
            self._known[key] = float(group.ends(served, nbytes, np.zeros(len(members))).max())
        return self._known[key]

    def _copies(self, name: str, root: int, pieces: tuple[int, ...], nbytes: float) -> float:
        key = (name, (root,), pieces, nbytes)
        if key not in self._known:
            plan = (copies_from if name == "scatter" else copies_to)(root, pieces)
            together = np.zeros(self._count)
            times = self._fabric().times(plan, nbytes, together) if plan.num_transfers else together
            self._known[key] = float(times.max())
        return self._known[key]

    def _fabric(self) -> VectorFabric:
        everyone = tuple(range(self._count))
        if everyone not in self._groups:
            self._groups[everyone] = GroupTimes(self._node, self._collectives, everyone)
        network, nothing = self._groups[everyone].network, TraceBuilder(keep=False)
        return VectorFabric(network, Slowdown(self._node, 0), nothing, False)
