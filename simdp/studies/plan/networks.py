"""Networks: the least that collectives take on a cluster.

Where a cost tells the time of a collective, that is it. Else its transfers are played, and the
least follows from what must be sent, whatever the algorithm. To sum S bytes of n ranks merges n
partial sums of each byte into one, which takes n - 1 transfers, and to spread what one rank has to
all others takes as many again: 2 (n - 1) one-way calls in all, as in the gossip problem (Harary and
Schwenk, "The communication problem on graphs and digraphs", 1974). So of 2 (n - 1) S bytes of an
all_reduce, and (n - 1) S of its halves and of a broadcast, some rank sends an n-th part or more,
over all the links that leave it; and the same holds for nodes. Switches that add save one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simdp.cluster import Cluster
from simdp.engine.choice import Planner
from simdp.engine.launcher import Launcher
from simdp.scenario import Scenario
from simdp.steps.bucket import Group
from simdp.steps.program import ProcessGroups

TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
"""How often (n - 1) / n of a buffer leaves some rank; of others nothing is said."""


class Network:
    """The collectives of one cluster.

    Parameters
    ----------
    scenario : Scenario
        Whose cluster and collectives count.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.cluster = scenario.cluster.model_copy(update={"stragglers": []})
        self._collectives = scenario.collectives
        self._launchers: dict[tuple[str, ...], Launcher] = {}
        self._known: dict[tuple[str, float, Group, tuple[str, ...]], float] = {}

    def least(
        self, collective: str, nbytes: float, group: Group, groups: Sequence[ProcessGroups]
    ) -> float:
        """The least that a collective takes once its last rank has come [s].

        Parameters
        ----------
        collective, nbytes, group
            As `simdp.steps.program.Called`.
        groups : sequence of ProcessGroups
            Of the program.
        """
        if self.cluster.world_size == 1 or isinstance(group, tuple):
            return 0.0
        names = tuple(one.name for one in groups)
        key = collective, nbytes, group, names
        if key not in self._known:
            if names not in self._launchers:
                planner = Planner(self.cluster)
                self._launchers[names] = Launcher(self._collectives, planner, groups)
            told = self._launchers[names].told(collective, nbytes, group)
            if told is None:
                sizes: dict[Group, int] = {one.name: one.ranks.shape[1] for one in groups}
                told = self._must_send(collective, nbytes, sizes.get(group), group is None)
            self._known[key] = told
        return self._known[key]

    def _must_send(self, collective: str, nbytes: float, size: int | None, of_all: bool) -> float:
        n, nodes = size or self.cluster.world_size, self.cluster.num_nodes
        times = min(TIMES.get(collective, 0), 1 if self._adds else 2)
        rank, node = self._leaving
        found = times * nbytes * (n - 1) / n / rank
        if of_all and nodes > 1:
            found = max(found, times * nbytes * (nodes - 1) / nodes / node)
        return found

    @cached_property
    def _adds(self) -> bool:
        """Whether switches may add."""
        return bool(
            self.cluster.inside_parents() is not None or self.cluster.across_parents() is not None
        )

    @cached_property
    def _leaving(self) -> tuple[float, float]:
        """The most that leaves a rank, and a node, over all their links [bytes/s]."""
        return _leaving(self.cluster)


def _leaving(cluster: Cluster) -> tuple[float, float]:
    numbering, m = cluster.numbering, cluster.local_size
    inside = 0.0
    for kind in numbering.inside:
        links = np.arange(kind.num_links)
        leaves, _ = kind.topology.ends(links, m, kind.cards)
        _, bandwidth = kind.topology.figures(links, kind.link, m, kind.cards)
        mine = leaves < m
        if mine.any():
            inside = max(inside, float(np.bincount(leaves[mine], bandwidth[mine]).max()))
    across, inter = 0.0, numbering.inter
    if inter is not None and cluster.num_nodes > 1:
        links = np.arange(numbering.between, numbering.num_links)
        _, bandwidth = numbering.figures(links)
        of_ports = inter.topology.of_ports
        cards = numbering.cards if of_ports else 1
        ends = cluster.num_nodes * cards
        local = links - numbering.between
        leaves, _ = inter.topology.ends(
            local if of_ports else local // numbering.cards, ends, cards
        )
        mine = leaves < ends
        across = float(np.bincount(leaves[mine] // cards, bandwidth[mine]).max())
    return inside + across, across
