"""Around: the order of a ring's ranks, which may have to keep some of them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.collectives.plans.layout import Layout
from simdp.spec import Int, Spec

Rank = Annotated[Int, Field(ge=0)]
Pair = Annotated[tuple[Rank, Rank], Field()]

MAX_AVOIDED = 64
"""Pairs that may be kept apart."""

MAX_SWAPS = 256
"""Ranks next to one, in the order so far, with which it may change places."""


class Around(Spec):
    """What rings have in common: which ranks they keep apart.

    Attributes
    ----------
    avoid : tuple of (int, int)
        Pairs of ranks that are no neighbours in the ring, such as those at the ends of a degraded
        link; of process groups, places in the group. Other ranks change places, those of one node
        as long as that is enough.
    """

    avoid: tuple[Pair, ...] = Field((), max_length=MAX_AVOIDED)

    def problem_with(self, layout: Layout) -> str | None:
        """See `Algorithm.problem_with`."""
        n = layout.world_size
        for a, b in self.avoid:
            if max(a, b) >= n or a == b:
                return f"cannot keep ranks {a} and {b} apart; give two of 0 ... {n - 1} in avoid."
        if n > 1 and self.avoid and _met(self.around(layout), self.avoid):
            return (
                f"finds no order of {n} ranks that keeps apart all pairs of avoid; leave some out."
            )
        return None

    def around(self, layout: Layout) -> Ints:
        """The ranks in the order in which the ring passes them, from rank 0 on."""
        return ring_order(layout.world_size, layout.per_node, self.avoid)


@lru_cache(maxsize=64)
def ring_order(world_size: int, per_node: int, avoid: tuple[Pair, ...]) -> Ints:
    """Order ranks around a ring: as they are numbered, but for pairs that are kept apart.

    Ranks change places two by two as long as that parts a pair; of several changes, the one that
    leads over the fewest ways between nodes and, of these, the nearest. Where no order is found,
    the best one comes back.

    Parameters
    ----------
    world_size, per_node : int
        Ranks, and ranks of a node.
    avoid : tuple of (int, int)
        Pairs of ranks that should be no neighbours; those that are not there do not count.

    Returns
    -------
    ndarray, shape `(world_size,)`
        From rank 0 on.
    """
    order = np.arange(world_size)
    left = _met(order, avoid)
    while left:
        tried = ((_met(found, avoid), far, found) for far, found in _swaps(order, avoid))
        helps = [
            (_crossings(found, per_node), met, far, found)
            for met, far, found in tried
            if met < left
        ]
        if not helps:
            break
        _, left, _, order = min(helps, key=lambda one: one[:3])
    return np.roll(order, -int(np.flatnonzero(order == 0)[0]))


def _met(order: Ints, avoid: Sequence[Pair]) -> int:
    """Count the pairs that are neighbours."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    n, there = len(order), [pair for pair in avoid if max(pair) < len(order)]
    apart = [abs(int(place[a]) - int(place[b])) for a, b in there]
    return sum(each in (1, n - 1) for each in apart)


def _crossings(order: Ints, per_node: int) -> int:
    """Count the ways between nodes."""
    node = order // per_node
    return int((node != np.roll(node, -1)).sum())


def _swaps(order: Ints, avoid: Sequence[Pair]) -> Iterator[tuple[int, Ints]]:
    """Orders in which a rank of such a pair has changed places, with how far it went."""
    n, place = len(order), {rank: at for at, rank in enumerate(order.tolist())}
    for at in sorted({place[rank] for pair in avoid for rank in pair if rank < n}):
        for far in range(1, min(n, MAX_SWAPS)):
            for other in ((at + far) % n, (at - far) % n):
                swapped = order.copy()
                swapped[[at, other]] = swapped[[other, at]]
                yield far, swapped
