"""Max-min fairness: no flow can get more without taking from one that has no more than itself.

Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Bools, Floats, Ints

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
        asked = narrowest(links, share)
        load = load_of(links, asked, num_links)
        settled = on_full_link(links, load >= left * (1 - SAME))
        if settled.all():
            rates[active] = asked
            return rates
        rates[active[settled]] = asked[settled]
        taken = load_of(links[:, settled], asked[settled], num_links)
        taken[0] = 0.0
        left = np.maximum(left - taken, 0.0)
        active, links = active[~settled], links[:, ~settled]


FEW_LINKS = 3
"""Links of a route up to which a loop over them is faster than one pass over all at once."""


def _count(links: Ints, num_links: int) -> Ints:
    """How many flows use each link."""
    return np.bincount(links.reshape(-1), minlength=num_links)


def narrowest(links: Ints, share: Floats) -> Floats:
    """The least share along each route."""
    found: Floats = share.take(links[0]) if len(links) <= FEW_LINKS else share[links].min(axis=0)
    for row in links[1:] if len(links) <= FEW_LINKS else ():
        np.minimum(found, share.take(row), out=found)
    return found


def load_of(links: Ints, rates: Floats, num_links: int) -> Floats:
    """What flows of some rates put on each link."""
    if len(links) > FEW_LINKS:
        each = rates[np.newaxis].repeat(len(links), axis=0).ravel()
        return np.bincount(links.reshape(-1), each, num_links).astype(np.float64, copy=False)
    load = np.bincount(links[0], rates, num_links).astype(np.float64, copy=False)
    for row in links[1:]:
        load += np.bincount(row, rates, num_links)
    return load


def on_full_link(links: Ints, full: Bools) -> Bools:
    """Whether any link of a route is full."""
    if len(links) > FEW_LINKS:
        anywhere: Bools = np.logical_or.reduce(full[links])
        return anywhere
    found: Bools = full.take(links[0])
    for row in links[1:]:
        found |= full.take(row)
    return found
