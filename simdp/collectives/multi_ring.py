"""Several rings at once over different links, each with an equal share of the buffer.

In one node, or with one rank to a node, ring c goes round in steps of the c-th number that has no
divisor in common with n: 1, n - 1, 3, n - 3, ... No two of them use a link of a full mesh in the
same direction.

On several nodes of m ranks all rings visit the nodes in the same order, but each has another local
rank at which it enters a node and another one at which it leaves, so that the rings use different
network cards; and inside a node no two use a link in the same direction. For even m ring c visits
the local ranks ``c, c + 1, c - 1, c + 2, c - 2, ...``, whose steps 1, -2, 3, ... are all different
modulo m (Williams 1949): there are m such rings. For odd m ring c goes in steps of the c-th number
s that has no divisor in common with m, from local rank ``2 s`` to ``s``.

References
----------
E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
treatments", Australian Journal of Scientific Research A 2(2), 1949.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGather,
    AllReduce,
    Assembly,
    Composed,
    Plan,
    ReduceScatter,
    even_offsets,
)
from simdp.collectives.plans.layout import Layout
from simdp.collectives.ring import ring_rounds
from simdp.spec import Int

MAX_CHANNELS = 64
"""As many as NCCL has (MAXCHANNELS)."""


def add_rings(collective: str, orders: list[Ints], parts: Assembly) -> int:
    """Add rings that run at the same time; every rank's piece is one chunk of each ring.

    Parameters
    ----------
    collective : str
        all_reduce, reduce_scatter or all_gather.
    orders : list of ndarray, each shape `(world_size,)`
        The ranks of each ring, every one sending to the next.
    parts : Assembly
        Takes one part per ring.

    Returns
    -------
    int
        Number of chunks of the whole.
    """
    n, k = len(orders[0]), len(orders)
    first_chunk, num_reducing, num_rounds = {
        "all_reduce": (0, n - 1, 2 * (n - 1)),
        "reduce_scatter": (-1, n - 1, n - 1),
        "all_gather": (0, 0, n - 1),
    }[collective]
    for channel, order in enumerate(orders):
        rounds = partial(ring_rounds, order, first_chunk, num_reducing, num_rounds)
        ring = Plan(collective, n, n, 0, rounds, even_offsets(n), order="ring")
        parts.add(ring, np.arange(n)[None, :], np.array([channel]), step=k)
    return n * k


def _strides(size: int) -> list[int]:
    """Numbers below ``size`` without a divisor in common with it, shortest way round first."""
    small = np.arange(1, size // 2 + 1)
    small = small[np.gcd(small, size) == 1]
    return list(dict.fromkeys(np.stack([small, size - small], axis=1).reshape(-1).tolist()))


def _is_flat(layout: Layout) -> bool:
    return 1 in (layout.num_nodes, layout.per_node)


def num_rings(layout: Layout) -> int:
    """How many rings there are that share no link."""
    size = layout.world_size if _is_flat(layout) else layout.per_node
    if not _is_flat(layout) and size % 2 == 0:
        return size
    return len(_strides(size))


def ring_orders(layout: Layout, channels: int) -> list[Ints]:
    """The ranks of the first ``channels`` rings in the order in which they visit them."""
    n, m = layout.world_size, layout.per_node
    if _is_flat(layout):
        return [np.arange(n) * stride % n for stride in _strides(n)[:channels]]
    local = np.arange(m)
    if m % 2 == 0:
        zigzag = np.where(local % 2, (local + 1) // 2, -(local // 2))
        paths = [(zigzag + channel) % m for channel in range(channels)]
    else:
        paths = [stride * (local + 2) % m for stride in _strides(m)[:channels]]
    nodes = np.arange(0, n, m)[:, None]
    return [(nodes + path).reshape(-1) for path in paths]


class _MultiRing(Composed):
    """What the three families have in common.

    Attributes
    ----------
    channels : int or None
        Number of rings; None stands for as many as share no link, 64 at most.
    """

    kind: Literal["multi_ring"] = "multi_ring"
    channels: Int | None = Field(None, ge=1, le=MAX_CHANNELS)

    def problem_with(self, layout: Layout) -> str | None:
        there = num_rings(layout)
        if self.channels is None or self.channels <= there:
            return None
        where = f"{layout.world_size} ranks"
        if not _is_flat(layout):
            where = f"{layout.num_nodes} nodes of {layout.per_node} ranks"
        return f"needs channels <= {there} for {where}, got {self.channels}; more would share links"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        channels = self.channels or min(num_rings(layout), MAX_CHANNELS)
        return add_rings(self.collective, ring_orders(layout, channels), parts)


class MultiRingAllReduce(_MultiRing, AllReduce):
    """Rings over different links at once: 2 (n - 1) rounds of 1/(n channels) of the buffer."""


class MultiRingReduceScatter(_MultiRing, ReduceScatter):
    """Rings over different links at once: n - 1 rounds of 1/(n channels) of the buffer."""


class MultiRingAllGather(_MultiRing, AllGather):
    """Rings over different links at once: n - 1 rounds of 1/(n channels) of the buffer."""
