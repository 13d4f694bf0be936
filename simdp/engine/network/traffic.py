"""Traffic: what crosses each link, from the plans that were launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.collectives import Part, Plan
from simdp.engine.network import Network
from simdp.engine.ops import Launch, Op, Wait

MAX_LISTED = 16
"""Links that a result lists, the busiest first; a large cluster has a hundred thousand."""


Call = tuple[str, float]
"""A collective, and its whole buffer [bytes]."""


class LinkUse(NamedTuple):
    """What crossed a link.

    Attributes
    ----------
    name : str
        The link.
    nbytes : float
        What crossed it [bytes].
    others : float
        What other jobs sent over it in the same time [bytes].
    utilization : float
        The part of the time for which it was busy, if it ran at its full bandwidth; 0 ... 1. Where
        that is an estimate, it counts as 1 at most.
    """

    name: str
    nbytes: float
    others: float
    utilization: float


class Traffic:
    """Counts what a script launches; of timed collectives nobody knows what links they use.

    Attributes
    ----------
    launched : dict of (int, Plan) to float
        Bytes of all collectives of one plan in one step.
    done : dict of Plan to float
        Bytes of those that the first rank has waited for.
    timed : bool
        Whether any collective was timed; these are in neither.
    calls : dict of (int, Call) to int, or None
        How often each step calls each timed collective; None where process groups have their own.
    """

    def __init__(self) -> None:
        self.launched: dict[tuple[int, Plan], float] = {}
        self.done: dict[Plan, float] = {}
        self.timed = False
        self.calls: dict[tuple[int, Call], int] | None = {}
        self._under_way: dict[int, tuple[Plan, float]] = {}

    def watch(self, script: Iterator[Op]) -> Iterator[Op]:
        """Pass a script on."""
        for op in script:
            if isinstance(op, Launch) and op.seconds is not None:
                self.timed = True
                self._count(op)
            elif isinstance(op, Launch):
                key = (op.step, op.plan)
                self.launched[key] = self.launched.get(key, 0.0) + op.nbytes
                self._under_way[op.call] = (op.plan, op.nbytes)
            yield op
            for call in op.calls if isinstance(op, Wait) else ():
                plan, nbytes = self._under_way.pop(call, (None, 0.0))
                if plan is not None:
                    self.done[plan] = self.done.get(plan, 0.0) + nbytes

    def _count(self, op: Launch) -> None:
        if op.groups is not None:
            self.calls = None
        elif self.calls is not None:
            key = op.step, (op.plan.collective, op.nbytes)
            self.calls[key] = self.calls.get(key, 0) + 1

    def timed_per_step(self, first: int, num_steps: int) -> dict[Call, float] | None:
        """Timed collectives of a mean step from ``first`` on; None where they are not known."""
        if self.calls is None:
            return None
        found: dict[Call, float] = {}
        for (step, call), count in self.calls.items():
            if step >= first:
                found[call] = found.get(call, 0.0) + count / num_steps
        return found

    def per_step(self, first: int, num_steps: int) -> dict[Plan, float]:
        """Bytes of each plan in a mean step from ``first`` on, ``num_steps`` of them."""
        found: dict[Plan, float] = {}
        for (step, plan), nbytes in self.launched.items():
            if step >= first:
                found[plan] = found.get(plan, 0.0) + nbytes / num_steps
        return found


def link_bytes(network: Network, moved: Mapping[Plan, float]) -> tuple[Ints, Floats]:
    """Bytes that cross each link.

    Parameters
    ----------
    network : Network
        Routes.
    moved : mapping of Plan to float
        Bytes of all collectives of each plan.

    Returns
    -------
    (ndarray, ndarray)
        Numbers of the links that are used, and the bytes that cross each, the most first.
    """
    links, nbytes = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for plan, total in moved.items():
        for part in plan.everything:
            c = network.of_part(part)
            chunk = total / plan.num_chunks * len(part.spread)
            crossing = chunk * _chunks_per_pair(network, part)[:, None, None]
            there = c.links >= 0
            links.append(c.links[there])
            nbytes.append(np.broadcast_to(crossing, there.shape)[there])
    used, place = np.unique(np.concatenate(links), return_inverse=True)
    each = np.bincount(place.reshape(-1), np.concatenate(nbytes), len(used)).astype(float)
    order = np.argsort(-each, kind="stable")
    return used[order], each[order]


def _chunks_per_pair(network: Network, part: Part) -> Floats:
    plan = part.plan
    if plan.order == "ring":
        return np.full(len(network.pairs(plan)), float(plan.num_rounds))
    if plan.order == "chain":
        return np.full(len(network.pairs(plan)), float(plan.num_chunks))
    total = np.zeros(len(network.pairs(plan)))
    for turn in network.turns(plan):
        np.add.at(total, turn.pair, turn.count)
    return total


Moved = tuple[Network, Mapping[Plan, float]]
"""A job's routes, and the bytes of all collectives of each of its plans."""


def report(
    network: Network,
    moved: Mapping[Plan, float],
    seconds: float,
    others: Sequence[Moved] = (),
    estimated: bool = False,
) -> dict[str, Any]:
    """What a result says of the links: how many were used, and the busiest of them.

    Parameters
    ----------
    network, moved, seconds, others, estimated
        As in `link_use`.
    """
    num_links, uses = link_use(network, moved, seconds, others, estimated)
    listed = [
        {"link": use.name, "nbytes": use.nbytes, "utilization": use.utilization}
        | ({"neighbours_nbytes": use.others} if others else {})
        for use in uses
    ]
    return {
        "num_links_used": num_links,
        "bottleneck": listed[0] if listed else None,
        "links": listed,
    }


def link_use(
    network: Network,
    moved: Mapping[Plan, float],
    seconds: float,
    others: Sequence[Moved] = (),
    estimated: bool = False,
) -> tuple[int, list[LinkUse]]:
    """Count the links that were used, and list the busiest, at most `MAX_LISTED`.

    Parameters
    ----------
    network, moved
        As in `link_bytes`.
    seconds : float
        The time in which that happened, on any rank [s].
    others : sequence of (Network, mapping)
        What other jobs moved in the same time, taken from all of theirs.
    estimated : bool
        Whether links were shared by rounds (`simdp.engine.network.lockstep`), of which one may
        begin before the last one is over.
    """
    links, nbytes = link_bytes(network, moved)
    beside = np.zeros(len(links))
    for theirs in others:
        used, each = link_bytes(*theirs)
        _, mine, common = np.intersect1d(links, used, return_indices=True)
        beside[mine] += each[common]
    _, bandwidth = network.cluster.link_figures(links)
    busy = (nbytes + beside) / bandwidth / seconds if seconds else np.zeros(len(links))
    if others or estimated:
        busy = np.minimum(busy, 1.0)
    order = np.argsort(-busy, kind="stable")[:MAX_LISTED]
    return len(links), [
        LinkUse(
            network.cluster.link_name(int(links[i])),
            float(nbytes[i]),
            float(beside[i]),
            float(busy[i]),
        )
        for i in order
    ]
