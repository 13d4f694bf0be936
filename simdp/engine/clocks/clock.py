"""Clocks: which fabric plays a run, decided from its plans before anything runs, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from simdp.cluster import Overheads
from simdp.collectives import Plan
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import Network
from simdp.engine.network.sharing import Routed, common_link, shared_link
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import Op
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder

NO_OVERHEADS = Overheads()

Fabric = Literal["auto", "event", "vector"]

Plans = Sequence[Plan] | Mapping[int, Sequence[Plan]]
"""Plans that a script may launch, by communication stream where there are several."""

FIXED_SHARES = "fixed-share vector"
"""The vectorised fabric where links are shared; see `simdp.engine.network.lockstep`."""

MAX_EVENT_TRANSFERS = 500_000
"""A collective of more transfers than these would keep the event fabric busy for ten seconds."""


class OtherJob(NamedTuple):
    """A neighbour, ready to play.

    Attributes
    ----------
    network : Network
        Routes of its ranks.
    plans : Plans
        Every plan that it may launch.
    slowdown : Slowdown
        Of its ranks, which nothing slows down.
    script : iterator of Op
        Its run, again and again.
    traffic : Traffic
        Counts what the script launches.
    """

    network: Network
    plans: Plans
    slowdown: Slowdown
    script: Iterator[Op]
    traffic: Traffic


@dataclass(frozen=True)
class Clock:
    """A fabric, ready to play.

    Attributes
    ----------
    fabric : {"event", "vector", "fixed-share vector"}
        Which.
    why : str
        Why this one, in a few words.
    network, plans, slowdown, trace, overheads
        As for `clock_for`.
    others : sequence of OtherJob
        Those of the other jobs that play beside it.
    """

    fabric: str
    why: str
    network: Network
    plans: Plans
    slowdown: Slowdown
    trace: TraceBuilder
    others: Sequence[OtherJob] = ()
    overheads: Overheads = NO_OVERHEADS

    def play(self, script: Iterable[Op]) -> None:
        """Charge the time of everything that a script yields."""
        if self.fabric == "event":
            from simdp.engine.clocks.event import EventFabric  # and SimPy with it
            from simdp.engine.clocks.job import Job

            mine = Job(self.network, _by_stream(self.plans), self.slowdown, self.trace)
            others = [
                Job(
                    other.network,
                    _by_stream(other.plans),
                    other.slowdown,
                    TraceBuilder(keep=False),
                )
                for other in self.others
            ]
            scripts = [iter(script), *(other.script for other in self.others)]
            EventFabric([mine, *others]).play(scripts)
        else:
            fixed = self.fabric == FIXED_SHARES
            fabric = VectorFabric(self.network, self.slowdown, self.trace, fixed, self.overheads)
            fabric.play(iter(script))


def clock_for(
    network: Network,
    plans: Plans,
    slowdown: Slowdown,
    trace: TraceBuilder,
    asked: Fabric = "auto",
    most_transfers: Callable[[], int] | None = None,
    others: Sequence[OtherJob] = (),
    overheads: Overheads = NO_OVERHEADS,
    timed: bool = False,
) -> Clock:
    """Choose the fabric of a run.

    Parameters
    ----------
    network : Network
        Routes.
    plans : Plans
        Every plan that may be launched; one of several sizes of an algorithm stands for all.
    slowdown : Slowdown
        When work ends that the stragglers delay.
    trace : TraceBuilder
        Takes the spans.
    asked : {"auto", "event", "vector"}
        The vectorised fabric where it is exact, else the event fabric; or a certain one.
    most_transfers : callable, optional
        Counts those of the longest collective; left out, of the longest plan.
    others : sequence of OtherJob
        Jobs on the same network; those that can slow the run down play beside it.
    overheads : Overheads
        How compute and collectives slow each other down.
    timed : bool
        Whether collectives bring their times, so that no transfer needs a link.

    Raises
    ------
    ValueError
        If ``"vector"`` would not be exact, or ``"event"`` is to play what has no transfers.
    ScenarioError
        If compute and collectives slow each other down in a run that only the event fabric plays.
    """
    if timed:
        if asked == "event":
            raise ValueError("fabric 'event' plays transfers, and collectives.cost brings times")
        why = "collectives.cost tells how long collectives take"
        return Clock("vector", why, network, plans, slowdown, trace, (), overheads)
    link = _shared(network, _by_stream(plans))
    met, others = _met((network, _all(plans)), others)
    link = link if met is None else met
    shared = None if link is None else network.cluster.link_name(link)
    if asked == "vector" and shared:
        raise ValueError(f"fabric 'vector' is not exact here: {shared} is shared; use 'event'")
    longest = max((plan.num_transfers for plan in _all(plans)), default=0)
    count = most_transfers or (lambda: longest)
    fabric, why = _choice(asked, shared, met is not None, count)
    if fabric == "event":
        _refuse_slowdowns(overheads, why)
    return Clock(fabric, why, network, plans, slowdown, trace, others, overheads)


def _by_stream(plans: Plans) -> Mapping[int, Sequence[Plan]]:
    return plans if isinstance(plans, Mapping) else {0: plans}


def _all(plans: Plans) -> list[Plan]:
    return [plan for several in _by_stream(plans).values() for plan in several]


def _shared(network: Network, streams: Mapping[int, Sequence[Plan]]) -> int | None:
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


def _choice(
    asked: Fabric, shared: str | None, among_others: bool, count: Callable[[], int]
) -> tuple[str, str]:
    """Choose between the fabrics for plans with transfers, and say why."""
    if asked == "event":
        return "event", "as asked for"
    if shared is None:
        return "vector", "no link is shared"
    if among_others:
        return "event", f"{shared} is shared with a neighbour"
    most = count()
    if most > MAX_EVENT_TRANSFERS:
        large = f"by a collective of {most:,} transfers"
        return FIXED_SHARES, f"{shared} is shared, {large}; fixed shares err by up to 20 %"
    return "event", f"{shared} is shared"


def _refuse_slowdowns(overheads: Overheads, why: str) -> None:
    for key in ("compute_slowdown", "collective_slowdown"):
        if getattr(overheads, key):
            raise ScenarioError(
                [
                    f"cluster.overheads.{key}: cannot be charged transfer by transfer, and "
                    f"{why}; set it to 0, or let collectives.cost be nccl or table."
                ]
            )


def _met(mine: Routed, others: Sequence[OtherJob]) -> tuple[int | None, list[OtherJob]]:
    """Find a link that a run shares with another job, and the jobs that can slow it down.

    These share a link with it, or with one of these.
    """
    first, found, left = None, list[OtherJob](), list(others)
    reached: list[Routed] = [mine]
    for one in reached:  # it grows
        for other in list(left):
            theirs = (other.network, _all(other.plans))
            link = common_link(one, theirs)
            if link is not None:
                first = link if first is None else first
                found.append(other)
                left.remove(other)
                reached.append(theirs)
    return first, [other for other in others if other in found]
