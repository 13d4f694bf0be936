"""Collectives of a run: their plans, the choices of ``auto``, their launches; and isolated ones.

A prediction and a bench time one collective that all ranks enter at once; nothing else runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.cluster import Cluster
from simdp.cluster.hardware import Contention
from simdp.collectives import Collectives, Layout, Plan, SubPlan, Wiring
from simdp.collectives.base import Algorithm
from simdp.collectives.plans import in_groups
from simdp.engine.clocks.clock import FIXED_SHARES, clock_for
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import LinkUse, link_use, meeting, shared_link
from simdp.engine.ops import ClockOp, ClockWait, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import SETUP, TraceBuilder
from simdp.scenario.placement import among_others, group_layout, layout, wiring_of, wiring_of_groups
from simdp.steps.partition import Group
from simdp.steps.program import ProcessGroups

# Plans --------------------------------------------------------------------------------------------

MAX_PREDICTED = 500_000
"""Transfers of a candidate above which it is not predicted: some tens of milliseconds."""


MAX_EXACT = 70_000
"""Transfers of a candidate up to which the event fabric predicts it: at most half a second."""


def is_auto(requested: Algorithm) -> bool:
    """Whether the algorithm is to be chosen."""
    return requested.kind == "auto"


class Prediction(NamedTuple):
    """Predicted duration [s] of an isolated collective that every rank enters at once."""

    algorithm: Algorithm
    seconds: float


class Planner:
    """Plans the collectives of a cluster, and chooses between algorithms by their predicted time.

    Parameters
    ----------
    cluster, seed
        The cluster; the scenario's seed, for `NetworkRoutes`.
    network : NetworkRoutes, optional
        The cluster's routes, if it is a part of a larger one.
    groups : ndarray, shape `(num_groups, group size)`, int64, optional
        Process groups that run the same collective at the same time; default: all ranks are one.
        Other ranks take no part.
    """

    def __init__(
        self,
        cluster: Cluster,
        network: NetworkRoutes | None = None,
        groups: Ints | None = None,
        seed: int = 0,
    ) -> None:
        self.cluster, self.groups = cluster, groups
        self.network = network or NetworkRoutes(cluster, seed=seed)
        self.layout: Layout = layout(cluster) if groups is None else group_layout(cluster, groups)
        if network is not None:
            self.layout = among_others(self.layout)
        self._in_groups: dict[Plan, Plan] = {}
        self._idle = Slowdown(cluster, 0)  # a prediction has no compute to slow down
        self._shared: dict[tuple[Algorithm, int], bool] = {}
        self._clocks: dict[tuple[Algorithm, int], VectorFabric] = {}
        self._predictions: dict[tuple[Algorithm, float, int], list[Prediction]] = {}
        self._chosen: dict[tuple[Algorithm, float, int], Algorithm] = {}

    def of_groups(self, groups: Ints) -> Planner:
        """Create a planner for process groups on the same network."""
        return Planner(self.cluster, self.network, groups)

    def algorithm(self, requested: Algorithm, nbytes: float, root: int = 0) -> Algorithm:
        """The algorithm of a size: the given one, or for ``auto`` the fastest candidate."""
        if not is_auto(requested):
            return requested
        key = (requested, nbytes, root)
        if key not in self._chosen:
            self._chosen[key] = min(self.predict(requested, nbytes, root), key=_seconds).algorithm
        return self._chosen[key]

    def chosen(self) -> dict[str, list[dict[str, Any]]]:
        """Choices of ``auto`` by collective.

        Each is a list of dicts: ``nbytes``, the smallest requested size with this ``algorithm``,
        which also applies to sizes up to the next entry.
        """
        choices: dict[str, list[dict[str, Any]]] = {}
        for (requested, nbytes, _), algorithm in sorted(self._chosen.items(), key=_size):
            entries = choices.setdefault(requested.collective, [])
            if not entries or entries[-1]["algorithm"] != algorithm.kind:
                entries.append({"nbytes": nbytes, "algorithm": algorithm.kind})
        return choices

    def plan(self, requested: Algorithm, nbytes: float, root: int = 0) -> Plan:
        """Plan a collective; see `Algorithm.plan`."""
        return self._planned(self.algorithm(requested, nbytes, root), nbytes, root)

    def _planned(self, algorithm: Algorithm, nbytes: float, root: int) -> Plan:
        plan = algorithm.plan(self.layout, nbytes, root)
        if self.groups is None:
            return plan
        if plan not in self._in_groups:
            self._in_groups[plan] = in_groups(plan, self.groups, self.cluster.world_size)
        return self._in_groups[plan]

    def seconds(self, requested: Algorithm, nbytes: float, root: int = 0) -> float:
        """Predict an isolated collective that every rank enters at once [s]."""
        algorithm = self.algorithm(requested, nbytes, root)
        return self._predicted(algorithm, self._planned(algorithm, nbytes, root), nbytes, root)

    def predict(self, requested: Algorithm, nbytes: float, root: int = 0) -> list[Prediction]:
        """Predict every candidate that supports the cluster.

        A candidate with shared links and more than `MAX_EXACT` transfers gets even shares of links,
        as equal ranks do. One of more than `MAX_PREDICTED` transfers is skipped unless there is no
        other.
        """
        from simdp.collectives.auto import Auto

        assert isinstance(requested, Auto), "only `auto` leaves a choice"
        key = (requested, nbytes, root)
        if key not in self._predictions:
            plans = [(a, self._planned(a, nbytes, root)) for a in requested.fitting(self.layout)]
            short = [(a, plan) for a, plan in plans if _length(plan) <= MAX_PREDICTED]
            self._predictions[key] = [
                Prediction(algorithm, self._predicted(algorithm, plan, nbytes, root))
                for algorithm, plan in short or plans
            ]
        return self._predictions[key]

    def _predicted(self, algorithm: Algorithm, plan: Plan, nbytes: float, root: int) -> float:
        key = (algorithm, root)
        if key not in self._shared:
            self._shared[key] = shared_link(self.network, [plan]) is not None
        if self._shared[key] and plan.num_transfers <= MAX_EXACT:
            return self._by_events(plan, nbytes)
        if key not in self._clocks:
            fixed = self._shared[key]
            self._clocks[key] = VectorFabric(self.network, self._idle, TraceBuilder(), fixed)
        enter = np.zeros(self.cluster.world_size)
        return float(self._clocks[key].times(plan, nbytes, enter).max())

    def _by_events(self, plan: Plan, nbytes: float) -> float:
        from simdp.engine.clocks.event import EventFabric  # and SimPy with it
        from simdp.engine.clocks.transfers import FabricJob

        job = FabricJob(self.network, {0: [plan]}, self._idle, TraceBuilder(keep=False))
        script: list[ClockOp] = [Launch(0, "prediction", 0, plan, nbytes, False), ClockWait((0,))]
        EventFabric([job]).play([iter(script)])
        return max(job.calls[0].end.values())


def _length(plan: Plan) -> int:
    """Transfers of a plan; rings and chains count 0, since they have closed forms."""
    return sum(
        len(part.members) * part.plan.num_transfers
        for part in plan.everything
        if part.plan.order not in ("ring", "chain")
    )


def _size(chosen: tuple[tuple[Algorithm, float, int], Algorithm]) -> tuple[str, float, int]:
    (requested, nbytes, root), _ = chosen
    return requested.collective, nbytes, root


def _seconds(prediction: Prediction) -> float:
    return prediction.seconds


# Launches -----------------------------------------------------------------------------------------

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


# Isolated collectives -----------------------------------------------------------------------------


class Timing(NamedTuple):
    """Duration and traffic of a collective; ``fabric`` is the clock, and the reason for it."""

    nbytes: float
    seconds: float
    algorithm: Algorithm
    fabric: str
    links: list[LinkUse]


class Bench:
    """Times collectives on one cluster, without its stragglers.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    groups : ndarray, shape `(num_groups, group size)`, int64, optional
        Process groups that all run the collective at the same time; default: all ranks are one.
    """

    def __init__(self, cluster: Cluster, groups: Ints | None = None) -> None:
        self.planner = Planner(cluster, groups=groups)
        self._nothing_slows = Slowdown(cluster, 0)  # a collective has no compute

    def time(self, requested: Algorithm, nbytes: float, root: int = 0) -> Timing:
        """Time one collective; parameters are those of `Algorithm.plan`."""
        algorithm = self.planner.algorithm(requested, nbytes, root)
        plan = self.planner.plan(algorithm, nbytes, root)
        trace = TraceBuilder()
        clock = clock_for(self.planner.network, [plan], self._nothing_slows, trace)
        clock.play([Launch(0, "collective", 0, plan, nbytes, False), ClockWait((0,))])
        end = float(trace.build().end.max(initial=0.0))
        fixed = clock.fabric == FIXED_SHARES
        _, links = link_use(self.planner.network, {plan: nbytes}, end, estimated=fixed)
        return Timing(nbytes, end, algorithm, f"{clock.fabric} fabric: {clock.why}", links)

    def candidates(self, requested: Algorithm, nbytes: float, root: int = 0) -> list[Prediction]:
        """Predicted duration of each candidate of ``auto``; empty for other algorithms."""
        return self.planner.predict(requested, nbytes, root) if is_auto(requested) else []
