"""Lower bounds of a point's step time and memory.

A cost gives the time of a collective. Without one its transfers are simulated, and the least time
follows from the bytes to send, whatever the algorithm. To sum S bytes of n ranks merges n partial
sums of each byte into one, which takes n - 1 transfers, and to broadcast one rank's bytes takes n -
1 more: 2 (n - 1) one-way calls, as in the gossip problem (Harary and Schwenk, "The communication
problem on graphs and digraphs", 1974). So of 2 (n - 1) S bytes of an all_reduce, and (n - 1) S of
its halves and of a broadcast, some rank sends an n-th part or more, over all the links that leave
it; and the same holds for nodes. Switches that reduce save one half.

A `StepDemand` is independent of device, network and micro-batch: it counts calls, bytes and
launches between waits. `StepDemand.least` computes its time for many clusters at once.

Why no simulated step can be shorter
------------------------------------
Every clock is a recurrence of sums and maxima over instants, with times that are not negative: work
begins when the rank's previous work is done, a collective when its stream is free, its predecessors
are over and its last rank has entered, and a rank continues when the collectives that it waits for
are over. Let one rank run without the others, so that it never waits for them, let each piece of
work take no longer than on any rank, and each collective no longer than without other work. Every
instant is then at most as late, by induction over the operations. Slowdowns of overlapping compute
and collectives, stragglers that only slow down, shared links and compression only add.

A step begins when the rank has finished the step before. Collectives of that step which are still
in progress count as done, which is earlier again; but then a step starts at its own end, so that
steps whose collectives outlive them have no bound but zero.

With many micro-steps, all but the first and the last are equal. Let x be the instants at which the
rank's streams are free. A further micro-step is x -> A x, which is monotone, and adds d to all
results if all of x is later by d. So if A x >= x + d in every component, then also A A x >= x + 2
d, and so on: d is the least advance of any stream in one micro-step.

Bounds are computed in two passes. The time of compute (a roofline per kernel, as in every
simulation) is cheap, and is the first bound. `Bounds.look` then adds communication, and memory
(`simdp.engine.phases`), for all points with the same operations at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, product
from simdp.cluster import Cluster
from simdp.cluster.allocators import Exact
from simdp.cluster.hardware import Device
from simdp.engine.collective import Launcher, Planner
from simdp.engine.compute.profile_times import COMPUTE, Times
from simdp.engine.compute.roofline import Roofline
from simdp.engine.interpreters.footprints import footprint_of
from simdp.engine.phases import MemoryLine
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.job.targets import SamplesNeeded
from simdp.results.metrics import JOULES, Rates
from simdp.scenario.checks import joint_problems
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario, build
from simdp.steps import ops
from simdp.steps.facts import Facts
from simdp.steps.ops import Concern, Handlers, HostCopy
from simdp.steps.partition import Group
from simdp.steps.program import ProcessGroups, flat
from simdp.studies.executor import CompletedItem, PointExecutor
from simdp.studies.fits import lines_of_depth, short_stacks
from simdp.studies.plan.request import (
    ACCUM,
    BATCH,
    BATCH_OPTION,
    MICRO,
    Infeasible,
    PlanPoint,
    Space,
    network_part,
    recipe_part,
)
from simdp.workload.step_costs import update_seconds


def lines_of(raw: Raw, base: Path) -> list[MemoryLine]:
    """Memory of the fullest rank, at every operation that may be the peak.

    ``raw`` is a scenario with one sample per micro-batch, merged with its machine; a ScenarioError
    if it is invalid. Exact allocation is assumed, since allocators never take less.
    """
    whole = build(raw, base)
    exact = {"allocator": Exact()}
    whole = whole.model_copy(update={"cluster": whole.cluster.model_copy(update=exact)})
    return list(lines_of_depth(whole, short_stacks(whole)))


TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
"""Times that (n - 1) / n of a buffer leaves some rank; other collectives have no bound."""


class NetworkCollectives:
    """Lower bounds of the collectives of one cluster.

    ``scenario`` gives the cluster, without its stragglers, and the collectives.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.cluster = scenario.cluster.model_copy(update={"stragglers": []})
        self._collectives = scenario.collectives
        self._launchers: dict[tuple[str, ...], Launcher] = {}
        self._known: dict[tuple[str, float, Group, tuple[str, ...]], float] = {}

    def least(
        self, collective: str, nbytes: float, group: Group, groups: Sequence[ProcessGroups]
    ) -> float:
        """Least time of a collective after its last rank has entered [s]."""
        if self.cluster.world_size == 1 or isinstance(group, tuple):
            return 0.0
        names = tuple(part.name for part in groups)
        key = collective, nbytes, group, names
        if key not in self._known:
            if names not in self._launchers:
                self._launchers[names] = Launcher(self._collectives, Planner(self.cluster), groups)
            least = self._launchers[names].given_seconds(collective, nbytes, group)
            if least is None:
                sizes: dict[Group, int] = {part.name: part.ranks.shape[1] for part in groups}
                least = self._must_send(collective, nbytes, sizes.get(group), group is None)
            self._known[key] = least
        return self._known[key]

    def _must_send(self, collective: str, nbytes: float, size: int | None, of_all: bool) -> float:
        n, nodes = size or self.cluster.world_size, self.cluster.num_nodes
        times = min(TIMES.get(collective, 0), 1 if self._adds else 2)
        rank, node = self._leaving
        seconds = times * nbytes * (n - 1) / n / rank
        if of_all and nodes > 1:
            seconds = max(seconds, times * nbytes * (nodes - 1) / nodes / node)
        return seconds

    @cached_property
    def _adds(self) -> bool:
        """Whether switches may reduce."""
        parents = self.cluster.inside_parents(), self.cluster.across_parents()
        return any(parent is not None for parent in parents)

    @cached_property
    def _leaving(self) -> tuple[float, float]:
        """Largest bandwidths out of a rank and out of a node, over all links [bytes/s]."""
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


# Clusters and work that points share --------------------------------------------------------------

ACTIVITIES = "forward", "backward", "tail"

SEEN_STEPS = 64  # most steps that are checked for stragglers; longer runs have no bound of compute


def named(settings: dict[str, object]) -> str:
    """Hash settings."""
    return repr(sorted(settings.items(), key=lambda item: item[0]))


@dataclass(eq=False)
class SharedCluster:
    """A cluster that points share: its collectives, different devices, cost and power.

    ``factor`` is the least factor of stragglers on compute.
    """

    scenario: Scenario
    network: NetworkCollectives
    devices: list[Device]
    factor: float
    rates: Rates

    @classmethod
    def of(cls, scenario: Scenario) -> SharedCluster:
        """Make it from a scenario."""
        cluster = scenario.cluster
        devices = list[Device]()
        for device in cluster.device if isinstance(cluster.device, list) else [cluster.device]:
            if device not in devices:
                devices.append(device)
        network, factor = NetworkCollectives(scenario), _factor(scenario)
        return cls(scenario, network, devices, factor, cluster.rates())

    @property
    def memory(self) -> float:
        """Memory of the smallest device per rank [bytes]."""
        least = min(device.memory for device in self.devices)
        return least / self.scenario.cluster.ranks_per_device


def _factor(scenario: Scenario) -> float:
    """Least factor on compute of any rank in any step."""
    cluster, steps = scenario.cluster, scenario.workload.steps or SEEN_STEPS + 1
    if not cluster.stragglers:
        return 1.0
    if steps > SEEN_STEPS:
        return 0.0
    slowdown = Slowdown(cluster, scenario.seed)
    return min(float(slowdown.factors(step).min()) for step in range(steps))


@dataclass(eq=False)
class Recipe:
    """Work of each rank, for any batch.

    ``calls`` has the seconds of each call by activity, micro-batch and device; ``times`` is by
    devices.
    """

    scenario: Scenario
    calls: dict[tuple[str, int, str], Floats] = field(default_factory=dict)

    times: dict[tuple[str, ...], Times] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether all ranks do the same in all steps, as the bounds assume."""
        workload, strategy = self.scenario.workload, self.scenario.strategy
        odd = workload.samples_per_rank or workload.rebalance or workload.packing
        if odd or not strategy.has_synchronous_ranks:
            return False
        if workload.lengths(self.scenario.seed, self.scenario.base):
            return False
        return not strategy.num_late and not strategy.averages_parameters

    def seconds(self, microbatch: int, devices: Sequence[Device]) -> dict[str, Floats]:
        """Time of each call on each device, by activity, shape `(num_calls, num_devices)` [s]."""
        missing = [
            device for device in devices if ("forward", microbatch, repr(device)) not in self.calls
        ]
        if missing:
            workload = self.scenario.workload
            times = self._times_of(missing)
            batch, which = np.full(len(missing), microbatch), np.zeros(len(missing), dtype=np.int64)
            shapes = [workload.model.known_shapes()]
            for name in (*ACTIVITIES[:2], *(ACTIVITIES[2:] if any(times.tails) else ())):
                call_times = times.seconds(name, batch, shapes, which)
                for number, device in enumerate(missing):
                    column = call_times.seconds[:, call_times.column[number]]
                    self.calls[name, microbatch, repr(device)] = column
        return {
            name: np.array([self.calls[name, microbatch, repr(device)] for device in devices]).T
            for name in ACTIVITIES
            if (name, microbatch, repr(devices[0])) in self.calls
        }

    def _times_of(self, devices: list[Device]) -> Times:
        key = tuple(map(repr, devices))
        if key not in self.times:
            workload = self.scenario.workload
            self.times[key] = COMPUTE[workload.compute.source](workload, Roofline(devices))
        return self.times[key]


# Work of a step -----------------------------------------------------------------------------------

MICRO_STEPS = 4
"""Most micro-steps of a demand: the first, two equal ones in the middle, and the last."""

BYTES, HOOKS, LAUNCHES, HOST_BYTES, KERNELS = range(5)
"""Columns of work outside calls: bytes of device memory, hooks, launches of collectives, bytes of
host memory, kernels of an update's loop over tensors."""

NUM_BESIDE = 5

UPDATES = NUM_BESIDE
"""Column of updates, which take the longer of their bytes and their launches over lists."""

NUM_COLUMNS = NUM_BESIDE + 1


class LaunchedCollective(NamedTuple):
    """A collective that is launched: a `simdp.steps.ops.CollectiveCall` on a stream.

    ``tag`` is None where the rank waits for it at once; ``wait`` and ``after`` are as for
    `simdp.steps.ops.AllReduce`.
    """

    tag: int | None
    collective: str
    nbytes: float
    group: Group
    stream: int
    wait: float
    after: tuple[int, ...]


PASSES = (ops.Forward, ops.Backward, ops.Tail)
"""Operations with a row of `Prices.calls` each, in their order."""

Event = int | LaunchedCollective | tuple[int, ...]
"""A row of work, a collective that is launched, or tags to wait for."""


class OneUpdate(NamedTuple):
    """Work of an update, each figure that of the rank with least of it.

    Memory traffic of scaling and of the optimizer [bytes]; launches of kernels over lists of
    tensors, and in a loop over tensors.
    """

    scaled: float
    moved: float
    over_lists: float
    in_loop: float


class Prices(NamedTuple):
    """Times per unit of work at many points."""

    calls: Mapping[str, Floats]
    """Forward, backward and tail of each call [s]; shape `(num_calls, num_points)`."""
    beside: Floats
    """Seconds per unit of each column `BYTES` ... `KERNELS`; shape `(NUM_BESIDE, num_points)`."""
    message: Floats
    """Before each collective, and at the beginning of a step [s]; shape `(num_points,)`."""
    first: Floats
    """Before each collective, and at the beginning of a step [s]; shape `(num_points,)`."""
    collective: Callable[[LaunchedCollective], Floats]
    """Least time of a collective, shape `(num_points,)` [s]."""


class StepDemand:
    """Work of a steady step of one program, with one micro-step, or with `MICRO_STEPS`.

    ``is_closed``: all collectives of a step end within it.
    """

    handlers = Handlers[Callable[[Any, Any, list[Event]], None]](Concern.BOUND)

    def __init__(self, scenario: Scenario) -> None:
        program = scenario.program
        self.groups, facts = program.groups, program.facts
        self._streams: dict[Group, int] = {None: 0, **{g.name: g.stream for g in self.groups}}
        self._num_calls = len(facts.graph.calls) + 1
        self._has_loss = scenario.workload.loss.kind != "none"
        self._beside = _OtherTraffic(scenario, facts)
        self.update = self._beside.of_update()
        self.segments: list[list[Event]] = []
        self._rows: list[Floats] = []
        started: set[int] = set()
        segment = list[Event]()
        for op in flat(program.steady):
            if isinstance(op, ops.Batch) and any(
                isinstance(e, int | LaunchedCollective) for e in segment
            ):
                self.segments.append(segment)
                segment = []
            self._add(op, segment)
            last = segment[-1] if segment else None
            if isinstance(op, ops.Wait):
                started -= set(op.tags)
            elif isinstance(last, LaunchedCollective) and last.tag is not None:
                started.add(last.tag)
        self.segments.append(segment)
        self.is_closed = not started
        self.rows: Floats = np.array(self._rows).reshape(-1, 3 * self._num_calls + NUM_COLUMNS)
        del self._beside, self._rows  # not needed by other processes

    def _add(self, op: ops.Op, segment: list[Event]) -> None:
        handler = self.handlers[type(op)]
        if handler is not None:
            handler(self, op, segment)

    @handlers(*ops.CALLING)
    def _collective(self, op: ops.Op, segment: list[Event]) -> None:
        called = op.called
        assert called is not None, "it starts a collective"
        self._count(segment, LAUNCHES, 1.0)
        tag: int | None = getattr(op, "tag", None)
        after = tuple(getattr(op, "after", ()))
        stream = self._streams.get(called.group, 0)
        wait = float(getattr(op, "wait", 0.0))
        segment.append(
            LaunchedCollective(
                tag, called.collective, called.nbytes, called.group, stream, wait, after
            )
        )

    @handlers(ops.Wait)
    def _wait(self, op: ops.Wait, segment: list[Event]) -> None:
        if op.tags:
            segment.append(tuple(op.tags))

    @handlers(ops.Copy, ops.Unshard)
    def _copy(self, op: ops.Copy | ops.Unshard, segment: list[Event]) -> None:
        self._count(segment, BYTES, 2 * op.nbytes)

    @handlers(HostCopy)
    def _host_copy(self, op: HostCopy, segment: list[Event]) -> None:
        self._count(segment, HOST_BYTES, op.nbytes)

    @handlers(ops.FillBucket)
    def _fill(self, op: ops.FillBucket, segment: list[Event]) -> None:
        self._count(segment, HOOKS, 1.0)
        if op.is_copied:
            self._count(segment, BYTES, 2.0 * self._beside.nbytes((op.name,)))

    @handlers(ops.Take)
    def _take(self, op: ops.Take, segment: list[Event]) -> None:
        if op.is_copied:
            self._count(segment, BYTES, 2.0 * self._beside.nbytes(op.bucket.names))

    @handlers(ops.Update)
    def _update(self, op: ops.Update, segment: list[Event]) -> None:
        self._count(segment, BYTES, self.update.scaled)
        self._count(segment, KERNELS, self.update.in_loop)
        self._count(segment, UPDATES, 1.0)

    def _row(self, segment: list[Event]) -> Floats:
        """The current row of work; a new one after a collective or a wait."""
        if not segment or not isinstance(segment[-1], int):
            segment.append(len(self._rows))
            self._rows.append(np.zeros(3 * self._num_calls + NUM_COLUMNS))
        return self._rows[-1]

    @handlers(*PASSES)
    def _call(self, op: ops.Forward | ops.Backward | ops.Tail, segment: list[Event]) -> None:
        if op.call < self._num_calls - 1 or self._has_loss:
            self._row(segment)[PASSES.index(type(op)) * self._num_calls + op.call] += 1

    def _count(self, segment: list[Event], column: int, amount: float) -> None:
        self._row(segment)[3 * self._num_calls + column] += amount

    def work(self, prices: Prices) -> Floats:
        """Time of each row, shape `(num_rows, num_points)` [s]."""
        calls = np.zeros((3 * self._num_calls, prices.beside.shape[1]))
        for number, activity in enumerate(("forward", "backward", "tail")):
            call_times = prices.calls.get(activity)
            if call_times is not None:
                first = number * self._num_calls
                count = min(len(call_times), self._num_calls)
                calls[first : first + count] = call_times[:count]
        beside = prices.beside
        moved = self.update.moved * beside[BYTES]
        update = update_seconds(moved, self.update.over_lists * beside[KERNELS])
        return product(self.rows, np.concatenate([calls, beside, np.atleast_2d(update)]))

    def least(self, prices: Prices, micro_steps: Floats) -> tuple[Floats, Floats]:
        """Least time of a step, and of its calls only, shape `(num_points,)` [s].

        ``micro_steps`` per step are 1 for all points, or 2 and more, as in the demand.
        """
        nothing = prices._replace(beside=np.zeros_like(prices.beside))
        calls = self._sum(self.work(nothing), micro_steps)
        seconds = self.work(prices)
        busy = prices.first + self._sum(seconds, micro_steps)
        rank = _Rank(prices, seconds)
        if not self.is_closed:
            return np.zeros_like(busy), calls
        first, *between, last = self.segments if len(self.segments) > 1 else [[], *self.segments]
        rank.play(first)
        for number, segment in enumerate(between):
            rank.play(segment, micro_steps - 2 - number >= 1)
        if between:
            rank.repeat(np.maximum(micro_steps - 2 - len(between), 0.0))
        rank.play(last)
        return np.maximum(rank.end(), busy), calls

    def _sum(self, seconds: Floats, micro_steps: Floats) -> Floats:
        nothing = np.zeros(seconds.shape[1])
        sums = [sum((seconds[e] for e in s if isinstance(e, int)), nothing) for s in self.segments]
        if len(sums) == 1:
            return sums[0]
        return sums[0] + sums[-1] + (micro_steps - 2) * sums[1]


class _OtherTraffic:
    """Memory traffic of operations outside the model's calls."""

    def __init__(self, scenario: Scenario, facts: Facts) -> None:
        self._scenario, self._facts = scenario, facts
        self._footprint = footprint_of(scenario, facts, scenario.program.partition)

    def nbytes(self, names: Sequence[str]) -> float:
        return float(self._facts.num_elements(tuple(names)) * self._facts.itemsize)

    def of_update(self) -> OneUpdate:
        """Work of an update on the rank with least of it; nothing for updates on the host."""
        kept, workload = self._footprint, self._scenario.workload
        if self._scenario.strategy.updates_on_host or workload.compute.source == "profile":
            return OneUpdate(0.0, 0.0, 0.0, 0.0)
        return OneUpdate(
            float(np.min(kept.moved_by_scaling())),
            float(np.min(kept.moved_by_optimizer())),
            float(np.min(kept.launched_over_lists())),
            float(np.min(kept.launched_by_optimizer())),
        )


class _Rank:
    """One rank that never waits for another one, at many points."""

    def __init__(self, prices: Prices, seconds: Floats) -> None:
        self._prices, self._seconds = prices, seconds
        self._clock = prices.first.copy()
        self._free: dict[int, Floats] = {}
        self._done: dict[int, Floats] = {}
        self._before: list[Floats] = []

    def play(self, segment: Sequence[Event], where: Bools | None = None) -> None:
        """Advance by a micro-step; with ``where``, only at those points."""
        self._before = self._state()
        clock, free, kept = self._clock, dict(self._free), dict(self._done)
        for event in segment:
            if isinstance(event, int):
                self._clock = self._clock + self._seconds[event]
            elif isinstance(event, LaunchedCollective):
                self._start(event)
            else:
                self._wait(event)
        if where is None:
            return
        nothing = np.zeros_like(clock)
        self._clock = np.where(where, self._clock, clock)
        for now, old in ((self._free, free), (self._done, kept)):
            for key, instant in now.items():
                now[key] = np.where(where, instant, old.get(key, nothing))

    def _state(self) -> list[Floats]:
        """Instants that later ones depend on; past ones count as now."""
        later = (*self._free.values(), *self._done.values())
        return [self._clock, *(np.maximum(self._clock, instant) for instant in later)]

    def repeat(self, times: Floats) -> None:
        """Advance by more micro-steps like the last one; see the proof above."""
        now = self._state()
        if len(now) != len(self._before):
            return
        moved = [after - before for after, before in zip(now, self._before, strict=True)]
        by = times * np.min(moved, axis=0)
        self._clock = self._clock + by
        self._free = {stream: free + by for stream, free in self._free.items()}
        self._done = {tag: done + by for tag, done in self._done.items()}

    def _start(self, asks: LaunchedCollective) -> None:
        enter = self._clock + asks.wait
        if asks.stream in self._free:
            enter = np.maximum(enter, self._free[asks.stream])
        for tag in asks.after:
            if tag in self._done:
                enter = np.maximum(enter, self._done[tag])
        end = enter + self._prices.message + self._prices.collective(asks)
        self._free[asks.stream] = end
        if asks.tag is None:
            self._clock = np.maximum(self._clock, end)
        else:
            self._done[asks.tag] = end

    def _wait(self, tags: Sequence[int]) -> None:
        for tag in tags:
            if tag in self._done:
                self._clock = np.maximum(self._clock, self._done.pop(tag))

    def end(self) -> Floats:
        """Time when all work and collectives are done [s]."""
        ends: Floats = np.max(self._state(), axis=0)
        return ends


Progress = Callable[[int, int], None]

SAFETY = 1 - 1e-9  # factor on bounds, since sums in another order differ by rounding


class BoundRequest(NamedTuple):
    """A scenario to bound, as plain data for its operations and for its memory.

    ``microbatch`` and ``room`` are the smallest micro-batch and largest memory of its points
    [bytes].
    """

    steps: Raw
    memory: Raw
    base: Path
    microbatch: int
    room: float


Read = tuple[StepDemand | None, list[tuple[float, float]]]
"""A scenario's demand, and the lines of its memory."""


def demand_of(request: BoundRequest) -> Read:
    """Compute a scenario's demand and memory, in any process.

    The demand is None where operations depend on times, or do not fit at any point. Lines of memory
    are the bytes with one sample in a micro-batch, and per further sample.
    """
    scenario = build(request.steps, request.base)
    lines = [(float(line), line.per_sample) for line in lines_of(request.memory, request.base)]
    least = max((fixed + more * (request.microbatch - 1) for fixed, more in lines), default=0.0)
    is_known = not scenario.program.facts.foreseen and SAFETY * least <= request.room
    return StepDemand(scenario) if is_known else None, lines


NeedOf = Callable[[int], SamplesNeeded | str]
"""Samples to the target by global batch, or why that batch is impossible."""

NO_BATCH = "the ranks cannot share the batch"


class Bounds:
    """Lower bounds of every point.

    Parameters
    ----------
    space : Space
        All points.
    points : sequence of PlanPoint
        Those to bound.
    need : callable
        Samples to the target by global batch, or why that batch is impossible.
    like : Bounds, optional
        Of other points of the same space; shared results are reused.

    Attributes
    ----------
    is_possible : ndarray, shape `(num_points,)`, bool
        False where a point is known to be infeasible.
    finish, cost, energy, memory : ndarray, shape `(num_points,)`
        Least [s], [USD], [kWh], [bytes]; infinite where price or power of the devices is unknown.
    room : ndarray, shape `(num_points,)`
        Memory of the devices [bytes].
    level : ndarray, shape `(num_points,)`, int64
        0 where only compute is bounded, else 1.
    why : dict of int to Infeasible
        Of points that are not possible.
    """

    def __init__(
        self,
        space: Space,
        points: Sequence[PlanPoint],
        need: NeedOf,
        like: Bounds | None = None,
    ) -> None:
        self.space, self.points = space, points
        self._places: dict[str, SharedCluster | None] = {} if like is None else like._places
        self._recipes: dict[str, Recipe | None] = {} if like is None else like._recipes
        self._incompatible: dict[tuple[int, int, int], str | None] = (
            {} if like is None else like._incompatible
        )
        self._read: dict[Hashable, Read | str] = {} if like is None else like._read
        self._wrong: dict[str, str] = {} if like is None else like._wrong
        count = len(points)
        self.is_possible = np.ones(count, dtype=np.bool_)
        self.step, self.busy, self.memory = (np.zeros(count) for _ in range(3))
        self.room, self.level = np.full(count, inf), np.zeros(count, dtype=np.int64)
        self.why = dict[int, Infeasible]()
        self._steps = np.zeros(count)
        self._rates, self._shrinks = np.zeros((count, 5)), np.zeros(count, dtype=np.bool_)
        self._groups: dict[Hashable, list[int]] = {}
        self._group_of: list[Hashable] = [None] * count
        for number, point in enumerate(points):
            self._place(number, point, need)
        self._compute_alone()
        self._spread()

    def _place(self, number: int, point: PlanPoint, need_of: NeedOf) -> None:
        """Group a point with those that share its operations."""
        place, recipe = self.place_of(point), self.recipe_of(point)
        batch = point.world_size * point.microbatch * point.micro_steps
        batch = batch or point.settings.get(BATCH) or self.space.global_batch or 0
        if not batch and recipe is not None:
            batch = self._own_batch(point)
        wrong: str | None = None
        if place is None or recipe is None:
            part = network_part if place is None else recipe_part
            wrong = self._wrong[named(part(point.settings))]
        else:
            wrong = self._incompatibility(point, place, recipe)
        need = need_of(batch) if batch else None
        if place is None or recipe is None or wrong or not isinstance(need, SamplesNeeded):
            self.is_possible[number] = False
            if wrong is not None:
                self.why[number] = Infeasible.of_line(wrong)
            else:
                reason = need if isinstance(need, str) else NO_BATCH
                self.why[number] = Infeasible(reason, BATCH_OPTION)
            return
        self.room[number], self._steps[number] = place.memory, need.mean / batch
        self._rates[number] = [inf if rate is None else rate for rate in place.rates[:5]]
        overheads = place.scenario.cluster.overheads
        is_hybrid = recipe.scenario.strategy.groups_follow_nodes
        self._shrinks[number] = recipe.scenario.recovery is not None
        key = (
            named(recipe_part(point.settings)),
            point.world_size,
            place.scenario.cluster.local_size if is_hybrid else 0,
            overheads.copies,
            min(point.micro_steps, 2),
        )
        self._group_of[number] = key
        self._groups.setdefault(key, []).append(number)

    @property
    def clusters(self) -> list[SharedCluster]:
        """The clusters of all points."""
        return [place for place in self._places.values() if place is not None]

    def _own_batch(self, point: PlanPoint) -> int:
        """Samples of a step as the scenario distributes them; 0 if it is invalid."""
        try:
            return int(self._built(point.settings).workload.samples_per_step(point.world_size))
        except ScenarioError:
            return 0

    def _incompatibility(
        self, point: PlanPoint, place: SharedCluster, recipe: Recipe
    ) -> str | None:
        """Why the parts of a point are incompatible; None where they are not."""
        key = id(place), id(recipe), min(point.micro_steps, 2)
        if key not in self._incompatible:
            parts = recipe.scenario
            batch = {"microbatch": max(point.microbatch, 1), "grad_accum": point.micro_steps}
            workload = parts.workload.model_copy(update=batch)
            cluster = place.scenario.cluster
            reasons = joint_problems(cluster, workload, parts.strategy, lambda *_: True)
            self._incompatible[key] = reasons[0] if reasons else None
        return self._incompatible[key]

    def place_of(self, point: PlanPoint) -> SharedCluster | None:
        """The cluster of a point; None where it is invalid."""
        settings = network_part(point.settings)
        key = named(settings)
        if key not in self._places:
            try:
                self._places[key] = SharedCluster.of(self._built(settings | self._some_batch))
            except ScenarioError as error:
                self._places[key], self._wrong[key] = None, error.problems[0]
        return self._places[key]

    def recipe_of(self, point: PlanPoint) -> Recipe | None:
        """The work of a point's ranks; None where it is invalid."""
        settings = recipe_part(point.settings)
        key = named(settings)
        if key not in self._recipes:
            network = network_part(point.settings)
            try:
                self._recipes[key] = Recipe(self._built(network | settings | self._some_batch))
            except ScenarioError as error:
                self._recipes[key], self._wrong[key] = None, error.problems[0]
        return self._recipes[key]

    @property
    def _some_batch(self) -> dict[str, Any]:
        batch: dict[str, Any] = {MICRO: 1, ACCUM: 1}
        return batch | ({BATCH: None} if "global_batch" in self.space.raw["workload"] else {})

    def _built(self, settings: dict[str, object]) -> Scenario:
        return build(self.space.raw_of(settings), self.space.base)

    def _compute_alone(self) -> None:
        """Bound every point by forward and backward of all micro-steps."""
        totals: dict[tuple[str, int, str], float] = {}
        for number in np.flatnonzero(self.is_possible).tolist():
            point = self.points[number]
            place, recipe = self.place_of(point), self.recipe_of(point)
            assert place is not None
            assert recipe is not None
            if not recipe.is_plain or not point.microbatch:
                self.level[number] = 1  # no bound
                continue
            least = inf
            for device in place.devices:
                key = named(recipe_part(point.settings)), point.microbatch, repr(device)
                if key not in totals:
                    seconds = recipe.seconds(point.microbatch, [device])
                    totals[key] = sum(float(call_times.sum()) for call_times in seconds.values())
                least = min(least, totals[key])
            loss = 1.0 if recipe.scenario.workload.loss.kind != "none" else 0.0
            least = point.micro_steps * least * place.factor * SAFETY * loss
            self.step[number] = self.busy[number] = least

    def look(self, executor: PointExecutor, progress: Progress | None = None) -> None:
        """Add communication and memory to the bounds of possible points, grouped by operations.

        ``progress`` is called with the number of finished points and of all.
        """
        open_ = self.is_possible & (self.level == 0)
        groups = {
            key: left
            for key, group in self._groups.items()
            if (left := [number for number in group if open_[number]])
        }
        unread = [key for key in groups if key not in self._read]
        done = sum(len(group) for key, group in groups.items() if key in self._read)
        requests = [self._bound_request(groups[key]) for key in unread]
        for place, outcome in executor.each(demand_of, requests):
            key = unread[place]
            if isinstance(outcome, CompletedItem):
                self._read[key] = outcome.value
            else:  # infeasible, or without a bound
                error = outcome.error
                cannot = error.problems[0] if isinstance(error, ScenarioError) else None
                self._read[key] = cannot or (None, [])
            done += len(groups[key])
            if progress is not None:
                progress(done, int(open_.sum()))
        for key, group in groups.items():
            demand = self._read[key]
            self.level[group] = 1
            if isinstance(demand, str):
                self.is_possible[group] = False
                self.why.update(dict.fromkeys(group, Infeasible.of_line(demand)))
            else:
                self._take(group, demand)
        self._spread()

    def _bound_request(self, group: Sequence[int]) -> BoundRequest:
        point = self.points[group[0]]
        count = 1 if point.micro_steps == 1 else MICRO_STEPS
        raws = [
            self.space.raw_of({**point.settings, **self._some_batch, ACCUM: accum})
            for accum in (count, min(count, 2))
        ]
        smallest = min(self.points[number].microbatch for number in group)
        room = float(self.room[group].max())
        return BoundRequest(raws[0], raws[1], self.space.base, smallest, room)

    def _take(self, group: Sequence[int], demand_read: Read) -> None:
        """Apply a demand and memory to all points of a group."""
        demand, lines = demand_read
        if demand is not None:
            step, busy = self._least(demand, group)
            self.step[group] = np.maximum(self.step[group], step)
            self.busy[group] = np.maximum(self.busy[group], busy)
        sizes = np.array([self.points[number].microbatch for number in group], dtype=float)
        if lines:
            fixed, more = np.array(lines).T
            most = (fixed[:, None] + more[:, None] * (sizes - 1)).max(axis=0)
            self.memory[group] = SAFETY * most

    def _least(self, demand: StepDemand, numbers: Sequence[int]) -> tuple[Floats, Floats]:
        """Least time of a step and of its calls at some points [s]."""
        points = [self.points[number] for number in numbers]
        places = [place for place in map(self.place_of, points) if place is not None]
        recipe = self.recipe_of(points[0])
        assert recipe is not None
        factors = np.array([place.factor for place in places])
        calls: dict[str, list[Floats]] = {}
        for point, place in zip(points, places, strict=True):
            for name, seconds in recipe.seconds(point.microbatch, place.devices).items():
                calls.setdefault(name, []).append(seconds.min(axis=1))
        clusters = [place.scenario.cluster for place in places]
        which: dict[int, int] = {}
        at = np.array([which.setdefault(id(place), len(which)) for place in places])
        different = list({id(place): place for place in places}.values())

        def collective(asks: LaunchedCollective) -> Floats:
            least = [
                place.network.least(asks.collective, asks.nbytes, asks.group, demand.groups)
                for place in different
            ]
            seconds: Floats = np.array(least)[at]
            return seconds

        prices = Prices(
            {name: np.array(columns).T * factors for name, columns in calls.items()},
            _beside(places) * np.where(SLOWED_BESIDE, factors, 1.0),
            np.array([c.overheads.before_collective(c.world_size) for c in clusters]),
            _first(recipe.scenario, clusters) * factors,
            collective,
        )
        micro_steps = np.array([point.micro_steps for point in points], dtype=float)
        step, busy = demand.least(prices, micro_steps)
        return SAFETY * step, SAFETY * busy

    def _spread(self) -> None:
        price, node = self._rates[:, 0], self._rates[:, 4]
        self.finish = self._steps * self.step
        self.cost = np.where(np.isinf(price), inf, np.nan_to_num(price, posinf=0) * self.finish)
        known = np.isfinite(self._rates[:, 1:4]).all(axis=1)
        levels = np.nan_to_num(self._rates[:, 1:4], posinf=0.0)
        least = levels.min(axis=1)
        joules = (least + node) * self.finish
        joules = joules + (levels[:, 0] - least) * self._steps * self.busy
        self.energy = np.where(known, joules / JOULES, inf)
        for bound in (self.cost, self.energy):  # ranks that leave have no cost
            bound[self._shrinks & np.isfinite(bound)] = 0.0


SLOWED_BESIDE = np.zeros((NUM_BESIDE, 1), dtype=np.bool_)
SLOWED_BESIDE[[HOOKS, LAUNCHES]] = True  # columns of host work, which stragglers also slow down


def _beside(places: Sequence[SharedCluster]) -> Floats:
    """Seconds per unit of work outside calls, shape `(NUM_BESIDE, num_places)`."""
    rates = np.zeros((NUM_BESIDE, len(places)))
    for number, place in enumerate(places):
        cluster = place.scenario.cluster
        fastest = max(max(device.stream_rate, device.memory_rate) for device in place.devices)
        rates[BYTES, number] = 1 / fastest
        rates[HOOKS, number] = cluster.overheads.hook
        rates[LAUNCHES, number] = cluster.overheads.launch
        rates[HOST_BYTES, number] = cluster.host.copying(1.0)
        rates[KERNELS, number] = min(device.launch for device in place.devices)
    return rates


def _first(scenario: Scenario, clusters: Sequence[Cluster]) -> Floats:
    host = scenario.workload.host
    return np.array([host.before_step(cluster.local_size) for cluster in clusters])
