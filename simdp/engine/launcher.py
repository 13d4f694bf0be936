"""Launches operations on the clock and records their spans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.cluster.hardware import Contention
from simdp.collectives import Collectives, Plan, SubPlan, Wiring
from simdp.engine.choice import Planner
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import meeting
from simdp.engine.ops import Launch
from simdp.results.trace import SETUP
from simdp.scenario.placement import wiring_of, wiring_of_groups
from simdp.steps.partition import Group
from simdp.steps.program import ProcessGroups

MAX_TRANSFERS_PER_CALL = 2_000
MAX_TRANSFERS_PER_RUN = 100_000
"""Transfers per call and per run up to which each gets a span of its own."""

MAX_CHAIN = 32
"""Ranks of a chain up to which its transfers get spans: a ring's all_reduce of as many ranks stays
below the limit per call.
"""


class Launcher:
    """Numbers the collectives of a run.

    ``groups`` have collectives of their own; ``shows_transfers``: transfers get spans, up to the
    limits.
    """

    def __init__(
        self,
        collectives: Collectives,
        planner: Planner,
        groups: Sequence[ProcessGroups] = (),
        shows_transfers: bool = True,
    ) -> None:
        self.collectives, self.planner = collectives, planner
        self._planners: dict[Group, Planner] = {None: planner}
        self._streams: dict[Group, int] = {None: 0}
        self.num_calls, self._shows_transfers = 0, shows_transfers
        cluster = planner.cluster
        self._wirings: dict[tuple[Group, NetworkRoutes], Wiring] = {}
        for several in groups:
            self._planners[several.name] = planner.of_groups(several.ranks)
            self._streams[several.name] = several.stream
        self._message = cluster.overheads.before_collective(cluster.world_size)
        self._num_recorded = 0
        self._slowdowns: dict[tuple[str, float, Group, NetworkRoutes], float] = {}

    def plan(self, collective: str, nbytes: float, root: int = 0, group: Group = None) -> Plan:
        """Plan a collective, by its key in ``collectives``, of all ranks or in process groups."""
        algorithm = getattr(self.collectives, collective)
        return self._planners[self._known(group)].plan(algorithm, nbytes, root)

    def stream_of(self, group: Group) -> int:
        """The communication stream of a group's collectives."""
        return self._streams[self._known(group)]

    def _known(self, group: Group) -> Group:
        """The name of a group; a new tuple of ranks becomes a group on the first stream."""
        if not isinstance(group, tuple):
            return group
        if len(group) == self.planner.cluster.world_size:
            return None
        if group not in self._planners:
            self._planners[group] = self.planner.of_groups(np.array([group]))
            self._streams[group] = 0
        return group

    def _wiring(self, group: Group, step: int) -> Wiring:
        """Wiring of a group's ranks in a step."""
        network = self.planner.network.at(step)
        if (group, network) not in self._wirings:
            planner, cluster = self._planners[group], network.cluster
            self._wirings[group, network] = (
                wiring_of(cluster)
                if planner.groups is None
                else wiring_of_groups(cluster, planner.groups, planner.layout.local_size)
            )
        return self._wirings[group, network]

    def copy(self, step: int, plan: Plan, nbytes: float, label: str) -> Launch:
        """Start copies between devices of one process, which always take the time of the links."""
        number = self.num_calls
        self.num_calls += 1
        slowdown = self.planner.cluster.overheads.compute_slowdown
        if isinstance(slowdown, Contention):
            slowdown = 0.0  # copy engines hold no multiprocessor
        return Launch(
            step,
            label,
            number,
            plan,
            nbytes,
            self._records(plan),
            slowdown=slowdown,
        )

    def launch(
        self,
        step: int,
        plan: Plan,
        nbytes: float,
        label: str,
        wait: float = 0.0,
        group: Group = None,
        after: tuple[int, ...] = (),
        delay: float = 0.0,
        copied: float = 0.0,
    ) -> Launch:
        """Start a collective on a communication stream.

        ``label`` is the content of the buffer; ``group`` its process groups, which may have a
        stream of their own, or some ranks; ``delay`` is additional time in its stream before it
        begins [s]. The others are as in `Launch`.
        """
        number, group = self.num_calls, self._known(group)
        self.num_calls += 1
        seconds = self._seconds(plan, nbytes, group, step)
        record = seconds is None and self._records(plan)
        return Launch(
            step,
            label,
            number,
            plan,
            nbytes,
            record,
            self._streams[group],
            wait,
            self._message + delay,
            seconds,
            after,
            self._planners[group].groups,
            copied,
            self._slowdown(plan, nbytes, group, step),
        )

    def _slowdown(self, plan: Plan, nbytes: float, group: Group, step: int) -> float:
        """Relative increase of compute time beside a collective."""
        cluster, collective = self.planner.cluster, plan.collective
        if not isinstance(cluster.overheads.compute_slowdown, Contention):
            return cluster.overheads.compute_slowdown
        key = collective, nbytes, group, self.planner.network.at(step)
        if key not in self._slowdowns:
            planner, algorithm = self._planners[group], getattr(self.collectives, collective)
            groups = planner.groups
            n = cluster.world_size if groups is None else groups.shape[1]

            def alone(size: float) -> float:
                seconds = self._seconds(plan, size, group, step)
                return planner.seconds(algorithm, size) if seconds is None else seconds

            self._slowdowns[key] = cluster.slowdown_beside(collective, n, nbytes, alone)
        return self._slowdowns[key]

    def _records(self, plan: Plan) -> bool:
        """Whether each transfer of a collective gets a span of its own; counts them."""
        if not self._shows_transfers:
            return False
        transfers = plan.num_transfers
        record = transfers <= MAX_TRANSFERS_PER_CALL and _longest_chain(plan) <= MAX_CHAIN
        record = record and not _overlapping(plan)
        record &= self._num_recorded + transfers <= MAX_TRANSFERS_PER_RUN
        self._num_recorded += transfers * record
        return record

    def predicted(self, collective: str, nbytes: float) -> float:
        """Predicted duration of an isolated collective that every rank enters at once [s]."""
        seconds = self._seconds(self.plan(collective, nbytes), nbytes)
        if seconds is None:
            seconds = self.planner.seconds(getattr(self.collectives, collective), nbytes)
        return self._message + seconds

    def given_seconds(self, collective: str, nbytes: float, group: Group = None) -> float | None:
        """Duration of a collective by its cost formula or table [s]; None if it is simulated."""
        cost = self.collectives.cost_of(collective)
        if not cost.timed:
            return None
        return cost.seconds(collective, nbytes, self._wiring(self._known(group), SETUP))

    def chosen(self) -> dict[str, list[dict[str, Any]]]:
        """As `Planner.chosen`; the name of process groups follows the collective."""
        choices: dict[str, list[dict[str, Any]]] = {}
        for name, planner in self._planners.items():
            ranks = f"ranks {name}" if isinstance(name, tuple) else name
            behind = "" if name is None else f" ({ranks})"
            choices |= {f"{key}{behind}": sizes for key, sizes in planner.chosen().items()}
        return choices

    def serving(
        self, collective: str, nbytes: float, root: int = 0, group: Group = None
    ) -> tuple[str, str]:
        """Algorithm and protocol of a collective; empty if unknown.

        NCCL's model chooses both; a measured table contains neither. A simulated plan sends only
        payload, as NCCL's protocol Simple does.
        """
        from simdp.collectives.costs.nccl import NcclCost  # few runs need it

        cost = self.collectives.cost_of(collective)
        if isinstance(cost, NcclCost):
            chosen = cost.choice(collective, nbytes, self._wiring(self._known(group), SETUP))
            return chosen.algorithm, chosen.protocol
        if cost.timed:
            return "", ""
        algorithm = getattr(self.collectives, collective)
        return self._planners[self._known(group)].algorithm(algorithm, nbytes, root).kind, "simple"

    def _seconds(
        self, plan: Plan, nbytes: float, group: Group = None, step: int = SETUP
    ) -> float | None:
        """Duration of a collective by its cost [s]; None if it is simulated."""
        cost = self.collectives.cost_of(plan.collective)
        if not cost.timed:
            return None
        return cost.seconds(plan.collective, nbytes, self._wiring(group, step))


def _longest_chain(plan: Plan) -> int:
    chains = (part.plan for part in plan.everything if part.plan.order == "chain")
    return max((chain.world_size for chain in chains), default=0)


@lru_cache(maxsize=256)
def _overlapping(plan: Plan) -> bool:
    """Whether two transfers between the same two ranks may coincide."""
    parts = plan.everything
    known: dict[tuple[Plan, int], frozenset[tuple[int, int]]] = {}
    keys = [(part.plan, id(part.members)) for part in parts]
    for part, key in zip(parts, keys, strict=True):
        if key not in known:
            known[key] = _pairs(part)
    return any(known[first] & known[second] for first, second in meeting(parts, keys))


def _pairs(part: SubPlan) -> frozenset[tuple[int, int]]:
    pairs: set[tuple[int, int]] = set()
    for moves in part.moves():
        pairs.update(zip(moves.src.tolist(), moves.dst.tolist(), strict=True))
    return frozenset(pairs)


def mean_losses(
    losses: Sequence[Floats], counts: Floats, adds: bool = False
) -> tuple[float | None, list[float | None]]:
    """Join the losses of micro-steps; return the mean or sum over all ranks, and of each.

    ``losses`` are nan on a rank without samples; ``counts``, of shape `(num_micro, world_size)`,
    are the numbers of items that each averages; ``adds``: losses are sums.
    """
    totals = (np.where(counts > 0, losses, 0.0) * (1.0 if adds else counts)).sum(axis=0)
    per_rank = counts.sum(axis=0)
    if adds:
        return (float(totals.sum()) if per_rank.sum() else None), [
            float(total) if count else None for total, count in zip(totals, per_rank, strict=True)
        ]
    mean = float(totals.sum() / per_rank.sum()) if per_rank.sum() else None
    return mean, [
        float(total / count) if count else None
        for total, count in zip(totals, per_rank, strict=True)
    ]
