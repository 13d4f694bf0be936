"""Flows: transfers that share links, each link divided max-min fairly among them.

Max-min fairness: no flow can get more without taking from one that has no more than itself
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.clocks.pace import Pace
from simdp.engine.network.fairness import SAME, fair_rates, load_of, narrowest, on_full_link


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
        asked = narrowest(links, self._share)
        load = load_of(links, asked, len(self._share))
        if on_full_link(links, load >= self._nearly_full).all():
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
