"""Chooses the clock that simulates a run, before it starts, and gives the reason.

The event fabric is a SimPy `EventLoop` with `FlowLinks` and `Transfers`; it also runs the parameter
server and rank programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, get_args

from simdp.cluster.hardware import Overheads
from simdp.collectives import Plan
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import Routed, Traffic, common_link, shared_link
from simdp.engine.ops import ClockOp, Launch
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder

NO_OVERHEADS = Overheads()

Fabric = Literal["auto", "event", "vector"]

FABRICS = get_args(Fabric)

Plans = Sequence[Plan] | Mapping[int, Sequence[Plan]]
"""Plans that a script may launch, by communication stream where there are several."""

FIXED_SHARES = "fixed-share vector"
"""Vectorised fabric with the fixed shares of `Lockstep`, where links are shared."""

MAX_EVENT_TRANSFERS = 500_000
"""Transfers of a collective above which the event fabric would take more than about ten seconds."""

SMALL = 400_000
"""Events up to which a run uses the event fabric even if the vectorised one is exact: a second."""

MAX_SMALL_RANKS = 1_000
"""Ranks above which a run is never small, even with few steps."""


class OtherJob(NamedTuple):
    """Another job on the same network."""

    network: NetworkRoutes
    plans: Plans
    slowdown: Slowdown
    script: Iterator[ClockOp]
    traffic: Traffic
    overheads: Overheads = NO_OVERHEADS


@dataclass
class Clock:
    """The fabric chosen for a run, with its inputs."""

    fabric: str
    why: str
    network: NetworkRoutes
    plans: Plans
    slowdown: Slowdown
    trace: TraceBuilder
    others: Sequence[OtherJob] = ()
    overheads: Overheads = NO_OVERHEADS
    num_steps: int = 0

    def play(self, script: Iterable[ClockOp]) -> None:
        """Simulate the time of every operation of a script."""
        if self.num_steps:
            script = self._sized(iter(script))
        if self.fabric == "event":
            from simdp.engine.clocks.event import EventFabric  # and SimPy with it
            from simdp.engine.clocks.transfers import FabricJob

            plans = _by_stream(self.plans)
            mine = FabricJob(self.network, plans, self.slowdown, self.trace, self.overheads)
            others = [
                FabricJob(
                    other.network,
                    _by_stream(other.plans),
                    other.slowdown,
                    TraceBuilder(keep=False),
                    other.overheads,
                )
                for other in self.others
            ]
            scripts = [iter(script), *(other.script for other in self.others)]
            EventFabric([mine, *others]).play(scripts)
        else:
            fixed = self.fabric == FIXED_SHARES
            fabric = VectorFabric(self.network, self.slowdown, self.trace, fixed, self.overheads)
            fabric.play(iter(script))

    def _sized(self, script: Iterator[ClockOp]) -> Iterator[ClockOp]:
        """Choose the fabric by the number of events of the first steps; return the whole script."""
        read, first, steady = list[ClockOp](), 0, 0
        for op in script:
            read.append(op)
            step = getattr(op, "step", 0)
            if step > 1 or first + steady > SMALL:
                break
            count = _num_events(op, self.slowdown.world_size)
            first, steady = (first, steady + count) if step == 1 else (first + count, steady)
        total = first + steady * max(self.num_steps - 1, 1)
        if total <= SMALL:
            self.fabric, self.why = "event", f"{self.why}, only {total:,} events"
        else:
            self.why += f", over {SMALL:,} events"
        return chain(read, script)


def _num_events(op: ClockOp, num_ranks: int) -> int:
    """Estimate the events that an operation costs the event fabric."""
    if isinstance(op, Launch) and op.seconds is None:
        return num_ranks + op.plan.num_transfers
    return num_ranks


def clock_for(
    network: NetworkRoutes,
    plans: Plans,
    slowdown: Slowdown,
    trace: TraceBuilder,
    fabric: Fabric = "auto",
    most_transfers: Callable[[], int] | None = None,
    others: Sequence[OtherJob] = (),
    overheads: Overheads = NO_OVERHEADS,
    timed: bool = False,
    num_steps: int = 0,
) -> Clock:
    """Choose the fabric of a run.

    Parameters
    ----------
    network, slowdown, trace
        Routes; straggler slowdowns; the builder that receives the spans.
    plans : Plans
        Every plan that may be launched; one size of an algorithm stands for all sizes.
    fabric : {"auto", "event", "vector"}
        A fixed fabric; ``"auto"``: the event fabric where links are shared and for runs of few
        events, else the vectorised one.
    most_transfers : callable, optional
        Counts the transfers of the longest collective; default: of the longest plan.
    others : sequence of OtherJob
        Jobs on the same network; those that can slow the run down are simulated with it.
    overheads, timed
        Mutual slowdown of compute and collectives; whether collectives have given durations.
    num_steps : int
        Steps of the run; 0 if it is never small.

    Raises
    ------
    ScenarioError
        If ``"vector"`` would not be exact.
    """
    met, shared = None, None
    if timed:
        plans, others = {}, ()
    else:
        link = _shared(network, _by_stream(plans))
        met, others = _met((network, _all(plans)), others)
        link = link if met is None else met
        shared = None if link is None else network.cluster.link_name(link)
    clock = Clock("vector", "as asked for", network, plans, slowdown, trace, others, overheads)
    if fabric == "event":
        clock.fabric = "event"
    elif shared is None:
        if fabric == "auto":
            tells = "collectives.cost tells how long collectives take"
            clock.why = tells if timed else "no link is shared"
            clock.num_steps = num_steps if slowdown.world_size <= MAX_SMALL_RANKS else 0
    else:
        count = most_transfers or (lambda: max(plan.num_transfers for plan in _all(plans)))
        clock.fabric, clock.why = _where_shared(fabric, shared, met is not None, count)
    return clock


def _by_stream(plans: Plans) -> Mapping[int, Sequence[Plan]]:
    return plans if isinstance(plans, Mapping) else {0: plans}


def _all(plans: Plans) -> list[Plan]:
    return [plan for several in _by_stream(plans).values() for plan in several]


def _shared(network: NetworkRoutes, streams: Mapping[int, Sequence[Plan]]) -> int | None:
    """Find a link that two transfers of one job may use at the same time."""
    before: list[Plan] = []
    for plans in streams.values():
        link = shared_link(network, plans)
        if link is None and before:
            link = common_link((network, before), (network, plans))
        if link is not None:
            return link
        before += plans
    return None


def _where_shared(
    fabric: Fabric, shared: str, among_others: bool, count: Callable[[], int]
) -> tuple[str, str]:
    """Choose between the fabrics where transfers share a link; return the fabric and the reason."""
    if fabric == "vector":
        raise ScenarioError(
            [f"fabric 'vector' is not exact here: {shared} is shared; use 'event' or 'auto'."]
        )
    if among_others:
        return "event", f"{shared} is shared with a neighbour"
    most = count()
    if most > MAX_EVENT_TRANSFERS:
        large = f"by a collective of {most:,} transfers"
        return FIXED_SHARES, f"{shared} is shared, {large}; fixed shares err by up to 20 %"
    return "event", f"{shared} is shared"


def _met(mine: Routed, others: Sequence[OtherJob]) -> tuple[int | None, list[OtherJob]]:
    """Find a link shared with another job, and the jobs connected to the run by shared links."""
    first, sharing, left = None, list[OtherJob](), list(others)
    reached: list[Routed] = [mine]
    for reached_job in reached:  # grows while it is iterated
        for other in list(left):
            theirs = (other.network, _all(other.plans))
            link = common_link(reached_job, theirs)
            if link is not None:
                first = link if first is None else first
                sharing.append(other)
                left.remove(other)
                reached.append(theirs)
    return first, [other for other in others if other in sharing]
