"""Flows: transfers that share links, each link divided max-min fairly among them.

Max-min fairness: no flow can get more without taking from one that has no more than itself
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SAME = 1e-12
"""Instants and rates closer than this fraction are the same."""


def fair_rates(links: Ints, capacity: Floats) -> Floats:
    """Max-min fair rates of flows.

    Parameters
    ----------
    links : ndarray, shape `(num_flows, longest)`
        The links of each flow, as positions in ``capacity``; fill up with the last position.
    capacity : ndarray, shape `(num_links + 1,)`
        Bandwidth of each link [bytes/s]; the last one is infinite and stands for no link.

    Returns
    -------
    ndarray, shape `(num_flows,)`
        Rates [bytes/s].
    """
    num_links, width = len(capacity), links.shape[1]
    rates = np.empty(len(links))
    active = np.arange(len(links))
    left = capacity
    while True:
        crossed = links[active]
        flat = crossed.ravel()
        share = left / np.maximum(np.bincount(flat, minlength=num_links), 1)
        narrowest = share[crossed].min(axis=1)
        # A link is full where every flow on it gets that link's own share: they are settled.
        load = np.bincount(flat, weights=np.repeat(narrowest, width), minlength=num_links)
        full = load >= left * (1 - SAME)
        settled = full[crossed].any(axis=1)
        if settled.all():
            rates[active] = narrowest
            return rates
        rates[active[settled]] = narrowest[settled]
        taken = np.bincount(
            crossed[settled].ravel(),
            weights=np.repeat(narrowest[settled], width),
            minlength=num_links,
        )
        taken[-1] = 0.0
        left = np.maximum(left - taken, 0.0)
        active = active[~settled]


class Flows:
    """The flows that are under way at an instant.

    Parameters
    ----------
    capacity : ndarray, shape `(num_links + 1,)`
        As in `fair_rates`.
    longest : int
        Links of the longest route.
    """

    def __init__(self, capacity: Floats, longest: int) -> None:
        self.capacity = capacity
        self._links = np.empty((64, longest), dtype=np.int64)
        self._left = np.empty(64)
        self._rate = np.zeros(64)
        self._tokens: list[Any] = []
        self._joining: list[tuple[Ints, float, Any]] = []
        self._updated = 0.0

    def join(self, links: Ints, nbytes: float, token: Any) -> None:
        """Let a flow begin at the next `settle`."""
        self._joining.append((links, nbytes, token))

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
        n = len(self._tokens)
        if n:
            left, rate = self._left[:n], self._rate[:n]
            # A flow has ended when less is left than its rate carries in a rounding error of now.
            left -= rate * (now - self._updated)
            ended = left <= rate * (SAME * max(now, 1e-9))
            if ended.any():
                self._drop(ended, done)
        self._updated = now
        self._admit()
        n = len(self._tokens)
        if not n:
            return np.inf
        rate = self._rate[:n]
        rate[:] = fair_rates(self._links[:n], self.capacity)
        return now + float((self._left[:n] / rate).min())

    def _drop(self, ended: NDArray[np.bool_], done: Callable[[Any], None]) -> None:
        n, kept = len(self._tokens), np.flatnonzero(~ended)
        finished = [self._tokens[i] for i in np.flatnonzero(ended)]
        self._tokens = [self._tokens[i] for i in kept]
        for array in (self._links, self._left, self._rate):
            array[: len(kept)] = array[:n][kept]
        for token in finished:
            done(token)

    def _admit(self) -> None:
        for links, nbytes, token in self._joining:
            n = len(self._tokens)
            if n == len(self._left):
                self._links = np.concatenate([self._links, np.empty_like(self._links)])
                self._left = np.concatenate([self._left, np.empty(n)])
                self._rate = np.concatenate([self._rate, np.zeros(n)])
            self._links[n], self._left[n] = links, nbytes
            self._tokens.append(token)
        self._joining.clear()
