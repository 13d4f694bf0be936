"""Flows: transfers that share links, each link divided max-min fairly among them.

Max-min fairness: no flow can get more without taking from one that has no more than itself
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.engine.clocks.pace import Pace

SAME = 1e-12
"""Instants and rates closer than this fraction are the same."""


def fair_rates(links: Ints, capacity: Floats) -> Floats:
    """Max-min fair rates of flows.

    Links fill up together: in every pass each flow asks for its narrowest link's equal share; a
    link where every flow asks for that link's own share is full, and its flows are settled.

    Parameters
    ----------
    links : ndarray, shape `(longest, num_flows)`
        The links of each flow, as positions in ``capacity``; fill up with position 0.
    capacity : ndarray, shape `(num_links + 1,)`
        Bandwidth of each link [bytes/s]; the first one is infinite and stands for no link.

    Returns
    -------
    ndarray, shape `(num_flows,)`
        Rates [bytes/s].
    """
    num_links, num_flows = len(capacity), links.shape[1]
    rates = np.empty(num_flows)
    active, left = np.arange(num_flows), capacity
    while True:
        count = _count(links, num_links)
        share = left / np.maximum(count, 1)
        asked = _narrowest(links, share)
        load = _load(links, asked, num_links)
        settled = _on_full_link(links, load >= left * (1 - SAME))
        if settled.all():
            rates[active] = asked
            return rates
        rates[active[settled]] = asked[settled]
        taken = _load(links[:, settled], asked[settled], num_links)
        taken[0] = 0.0
        left = np.maximum(left - taken, 0.0)
        active, links = active[~settled], links[:, ~settled]


FEW_LINKS = 3
"""Links of a route up to which a loop over them is faster than one pass over all at once."""


def _count(links: Ints, num_links: int) -> Ints:
    """How many flows use each link."""
    return np.bincount(links.reshape(-1), minlength=num_links)


def _narrowest(links: Ints, share: Floats) -> Floats:
    """The least share along each route."""
    found: Floats = share.take(links[0]) if len(links) <= FEW_LINKS else share[links].min(axis=0)
    for row in links[1:] if len(links) <= FEW_LINKS else ():
        np.minimum(found, share.take(row), out=found)
    return found


def _load(links: Ints, rates: Floats, num_links: int) -> Floats:
    """What flows of some rates put on each link."""
    if len(links) > FEW_LINKS:
        each = rates[np.newaxis].repeat(len(links), axis=0).ravel()
        return np.bincount(links.reshape(-1), each, num_links).astype(np.float64, copy=False)
    load = np.bincount(links[0], rates, num_links).astype(np.float64, copy=False)
    for row in links[1:]:
        load += np.bincount(row, rates, num_links)
    return load


def _on_full_link(links: Ints, full: Bools) -> Bools:
    """Whether any link of a route is full."""
    if len(links) > FEW_LINKS:
        anywhere: Bools = np.logical_or.reduce(full[links])
        return anywhere
    found: Bools = full.take(links[0])
    for row in links[1:]:
        found |= full.take(row)
    return found


class Flows:
    """The flows that are under way at an instant, and the links that they may use.

    Kept in columns of arrays; a flow that ends hands its column to the last one.
    """

    def __init__(self) -> None:
        self._bandwidth = [np.inf]  # of each link; the first one stands for no link
        self._count = [0]
        self.capacity = self._nearly_full = self._share = np.array(self._bandwidth)
        self._links = np.zeros((1, 64), dtype=np.int64)
        self._left = np.empty(64)
        self._rate = np.zeros(64)
        self._flows: list[tuple[int, Any, Ints, Pace | None]] = []  # the first is a number
        self._joined = 0
        self._joining: list[tuple[Ints, float, Any, Pace | None]] = []
        self._any_pace = False
        self._updated, self._next_end = 0.0, np.inf

    def add_link(self, bandwidth: float) -> int:
        """Add a link of some bandwidth [bytes/s]; tell its position."""
        self._bandwidth.append(bandwidth)
        self._count.append(0)
        return len(self._count) - 1

    def bandwidth(self, position: int) -> float:
        """Of a link [bytes/s]."""
        return self._bandwidth[position]

    def join(self, links: Ints, nbytes: float, token: Any, pace: Pace | None = None) -> None:
        """Let a flow over links at some positions begin at the next `settle`.

        One that is slowed down keeps its share of the links, and makes less of it.
        """
        self._joining.append((links, nbytes, token, pace))
        self._any_pace = self._any_pace or pace is not None

    def settle(self, now: float, done: Callable[[Any], None]) -> float:
        """Bring all flows to an instant: end the finished, begin the new, share anew.

        Parameters
        ----------
        now : float
            The instant [s].
        done : callable
            Called with the token of each flow that has ended, in order of joining.

        Returns
        -------
        float
            The instant at which the next flow ends, if nothing changes [s]; inf without flows.
        """
        n = len(self._flows)
        if n:
            left, rate = self._left[:n], self._rate[:n]
            left -= rate * (now - self._updated)
            if now >= self._next_end * (1 - SAME):
                # Ended is what its rate finishes within a rounding error of now.
                self._drop(np.flatnonzero(left <= rate * (SAME * max(now, 1e-9))).tolist(), done)
        self._updated = now
        self._admit()
        n = len(self._flows)
        if not n:
            self._next_end = np.inf
            return np.inf
        rate = self._rates(self._links[:, :n])
        if self._any_pace:
            rate = rate / [1.0 if flow[3] is None else flow[3].slow for flow in self._flows]
        self._rate[:n] = rate
        self._next_end = now + float((self._left[:n] / rate).min())
        return self._next_end

    def _rates(self, links: Ints) -> Floats:
        """Fair rates: every flow's narrowest equal share, where that fills those links."""
        asked = _narrowest(links, self._share)
        load = _load(links, asked, len(self._share))
        if _on_full_link(links, load >= self._nearly_full).all():
            return asked
        return fair_rates(links, self.capacity)

    def _recount(self, links: Ints, change: int) -> None:
        count, share, bandwidth = self._count, self._share, self._bandwidth
        for link in links.tolist():
            count[link] += change
            share[link] = bandwidth[link] / max(count[link], 1)

    def _drop(self, ended: Sequence[int], done: Callable[[Any], None]) -> None:
        finished = sorted((self._flows[column] for column in ended), key=itemgetter(0))
        for column in reversed(ended):
            self._recount(self._flows[column][2], -1)
            last = len(self._flows) - 1
            self._flows[column] = self._flows[last]
            self._flows.pop()
            if column != last:
                self._links[:, column] = self._links[:, last]
                self._left[column], self._rate[column] = self._left[last], self._rate[last]
        for _, token, *_ in finished:
            done(token)

    def _admit(self) -> None:
        if len(self._bandwidth) > len(self.capacity):
            self.capacity = np.array(self._bandwidth)
            self._nearly_full = self.capacity * (1 - SAME)
            self._share = self.capacity / np.maximum(self._count, 1)
        for links, nbytes, token, pace in self._joining:
            n, length = len(self._flows), len(links)
            if n == len(self._left):
                self._links = np.concatenate([self._links, np.zeros_like(self._links)], axis=1)
                self._left = np.concatenate([self._left, np.empty(n)])
                self._rate = np.concatenate([self._rate, np.zeros(n)])
            if length > len(self._links):
                more = np.zeros((length - len(self._links), len(self._left)), dtype=np.int64)
                self._links = np.concatenate([self._links, more])
            self._links[:length, n], self._links[length:, n] = links, 0
            self._left[n] = nbytes
            self._recount(links, 1)
            self._flows.append((self._joined, token, links, pace))
            self._joined += 1
        self._joining.clear()
