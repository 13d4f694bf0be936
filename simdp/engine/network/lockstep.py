"""Transfer times on shared links if all ranks start each round together.

For collectives of more transfers than the event fabric can play. Parts of a plan that stand at the
same depth begin together, and so do their first rounds, their second ones, ... The transfers of a
round share their links max-min fairly until the last one is over. What this leaves out is what
transfers of different rounds do to each other; `python -m benchmarks.fabrics` prints its size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.collectives import Plan, SubPlan
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import fair_rates

SAME = 1e-9
"""Instants closer than this part of the time since the round began are one."""

REPEATING = ("ring", "chain")
"""Orders of plans whose connections do the same in every round."""

BUDGET = 10_000_000
"""Links of flows that are looked at when links are shared anew as flows end, in a second or so."""

MAX_KEPT = 64
"""Parts and sizes whose times are kept for the next collective."""


class Frame(NamedTuple):
    """Transfers of a round that begin together.

    Attributes
    ----------
    at : ndarray
        Their places in the round.
    pair : ndarray
        Which of the part's connections each takes.
    chunks : ndarray
        How many of the part's chunks each carries.
    """

    at: Ints
    pair: Ints
    chunks: Ints


class Lockstep:
    """Times of the transfers of one plan.

    Parameters
    ----------
    network : Network
        Routes.
    plan : Plan
        The whole.
    """

    def __init__(self, network: NetworkRoutes, plan: Plan) -> None:
        self.network, self.parts = network, plan.everything
        self._depth: list[int] = []
        for part in self.parts:
            self._depth.append(max((self._depth[i] + 1 for i in part.after), default=0))
        self._known: dict[tuple[object, ...], list[Floats]] = {}
        self._frames: dict[Plan, list[list[Frame]]] = {}

    def times(self, number: int, chunk_nbytes: float) -> list[Floats]:
        """How long the transfers of a part take, latency included.

        Parameters
        ----------
        number : int
            Which of ``plan.everything``.
        chunk_nbytes : float
            Of one chunk of the whole [bytes].

        Returns
        -------
        list of ndarray, shape `(num_transfers, num_groups)`
            Of each round [s]; of a ring or a chain, whose rounds are alike, of the connections.
        """
        same = [i for i, depth in enumerate(self._depth) if depth == self._depth[number]]
        beside = [self.parts[i] for i in sorted(same, key=lambda i: i != number)]
        key = (chunk_nbytes, *((part.plan, id(part.members), len(part.spread)) for part in beside))
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            everything = [
                [self._at(part.plan, place) for part in beside]
                for place in range(len(self._rounds(beside[0].plan)))
            ]
            # Most rounds of a pipeline are alike.
            keys = [
                b"|".join(
                    column.tobytes() for frames in rounds for frame in frames for column in frame
                )
                for rounds in everything
            ]
            alike = dict(zip(keys, everything, strict=True))
            found = {
                here: self._of_round(beside, rounds, chunk_nbytes, BUDGET // len(alike))
                for here, rounds in alike.items()
            }
            self._known[key] = [found[here] for here in keys]
        return self._known[key]

    def _rounds(self, plan: Plan) -> list[list[Frame]]:
        """The frames of each round, those that are first on their connections first."""
        if plan not in self._frames:
            if plan.order in REPEATING:
                every = np.arange(len(self.network.pairs(plan)))
                self._frames[plan] = [[Frame(every, every, np.ones_like(every))]]
            else:
                self._frames[plan] = [
                    [
                        Frame(at, turn.pair[at], np.broadcast_to(turn.count, turn.pair.shape)[at])
                        for at in turn.in_line
                    ]
                    for turn in self.network.turns(plan)
                ]
        return self._frames[plan]

    def _at(self, plan: Plan, place: int) -> list[Frame]:
        """What a plan does in a round: a ring the same in every one, and after the last nothing."""
        rounds = self._rounds(plan)
        place = 0 if plan.order in REPEATING else place
        return rounds[place] if place < len(rounds) else []

    def _of_round(
        self, beside: list[SubPlan], rounds: list[list[Frame]], chunk_nbytes: float, budget: int
    ) -> Floats:
        """Times of a round of the first part, while the others play theirs."""
        num_groups = len(beside[0].members)
        times = np.empty((sum(len(frame.at) for frame in rounds[0]), num_groups))
        for line, frame in enumerate(rounds[0]):
            together = [
                (part, of_part[line])
                for part, of_part in zip(beside, rounds, strict=True)
                if line < len(of_part)
            ]
            found = self._together(together, chunk_nbytes, budget)
            times[frame.at] = found[: len(frame.at) * num_groups].reshape(-1, num_groups)
        return times

    def _together(
        self, frames: list[tuple[SubPlan, Frame]], chunk_nbytes: float, budget: int
    ) -> Floats:
        """Times of the transfers of some frames, one frame after the other, group by group."""
        each = [self.network.of_part(part) for part, _ in frames]
        longest = max(c.links.shape[-1] for c in each)
        columns = []
        for (part, frame), c in zip(frames, each, strict=True):
            links = c.links[frame.pair].reshape(-1, c.links.shape[-1])
            padding = ((0, 0), (0, longest - links.shape[1]))
            nbytes = np.repeat(frame.chunks * (len(part.spread) * chunk_nbytes), c.src.shape[1])
            alpha, bandwidth = (of[frame.pair].reshape(-1) for of in (c.alpha, c.bandwidth))
            columns.append((np.pad(links, padding, constant_values=-1), nbytes, alpha, bandwidth))
        links, nbytes, alpha, bandwidth = map(np.concatenate, zip(*columns, strict=True))
        used, places = np.unique(links, return_inverse=True)
        capacity = np.where(used >= 0, self.network.cluster.link_figures(used)[1], np.inf)
        places = places.reshape(links.shape).T
        # What lets less through than its links do has a link more, of its own.
        slower = np.flatnonzero(bandwidth < capacity[places].min(axis=0))
        own = np.zeros((1, len(nbytes)), dtype=np.int64)
        own[0, slower] = 1 + len(used) + np.arange(len(slower))
        capacity = np.concatenate([[np.inf], capacity, bandwidth[slower]])
        links = np.concatenate([1 + places, own])
        times = max(budget // links.size, 1)
        return _ends(links, capacity, nbytes, alpha, times)


def _ends(links: Ints, capacity: Floats, nbytes: Floats, alpha: Floats, times: int) -> Floats:
    """When flows are over that share links max-min fairly, each from the end of its latency on.

    Parameters
    ----------
    links, capacity
        As in `fair_rates`.
    nbytes, alpha : ndarray, shape `(num_flows,)`
        Bytes and latency of each [s].
    times : int
        How often links are shared anew; then each flow keeps its rate.
    """
    end, left = alpha.copy(), nbytes.copy()
    active, now = np.flatnonzero(nbytes * np.isfinite(capacity[links].min(axis=0))), 0.0
    while len(active):
        now = max(now, float(alpha[active].min()))
        begun = (alpha[active] <= now * (1 + SAME)) | (times == 1)
        here = active[begun]
        rate = fair_rates(links[:, here], capacity)
        needs = left[here] / rate
        if times == 1:
            end[here] = np.maximum(end[here], now) + needs
            break
        passed = min(needs.min(), alpha[active[~begun]].min(initial=np.inf) - now)
        left[here] -= rate * passed
        now += passed
        over = needs <= passed + SAME * now
        end[here[over]] = now
        active = np.concatenate([active[~begun], here[~over]])
        times -= 1
    return end
