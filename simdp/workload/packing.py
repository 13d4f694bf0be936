"""Packing: samples of unequal length joined to long ones, so that there is nothing to pad."""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.spec import Int, Spec
from simdp.workload.datasets.lengths.base import most_taken
from simdp.workload.models import Model


class Packs(NamedTuple):
    """Samples that have been joined.

    Attributes
    ----------
    pieces : ndarray, shape `(num_pieces,)`, int64
        Tokens that look at each other, pack by pack.
    first : ndarray, shape `(num_packs,)`, int64
        Where among them each pack begins.
    """

    pieces: Ints
    first: Ints

    @property
    def tokens(self) -> Ints:
        """Tokens of each pack, shape `(num_packs,)`."""
        return np.add.reduceat(self.pieces, self.first)


class Packing(Spec):
    """How samples are joined, once, before the first epoch; then packs are what is dealt out.

    The lengths are those that seed 0 draws, so that an epoch has as many packs whatever the
    scenario's seed, which draws their order.

    Attributes
    ----------
    to : int or None
        Most tokens of a pack; by default what the model takes. Of longer samples the rest is left
        out.
    strategy : {"bfd", "wrapped"}
        Best fit, the longest first: a sample goes into the fullest pack that has room for it, and
        looks at itself alone, as where the flash kernel is told where samples begin. Or one behind
        the other and cut wherever a pack is full: then all tokens of a pack look at each other, and
        nothing is left out.

    References
    ----------
    TRL's ``pack_dataset``, trl/data_utils.py; Ding et al., "Fewer truncations improve language
    modeling", arXiv 2404.10830.
    """

    to: Int | None = Field(None, ge=1, le=10**8)
    strategy: Literal["bfd", "wrapped"] = "bfd"

    def most(self, model: Model) -> int:
        """Tokens that a pack has room for."""
        return self.to or most_taken(model)

    def packs(self, lengths: Ints, most: int) -> Packs:
        """Join samples.

        Parameters
        ----------
        lengths : ndarray, shape `(num_samples,)`
            Their tokens.
        most : int
            Tokens that a pack has room for.
        """
        return _packs(self.strategy, np.ascontiguousarray(lengths).tobytes(), most)


@lru_cache(maxsize=4)
def _packs(strategy: str, lengths: bytes, most: int) -> Packs:
    """As `Packing.packs`; many ask for the same."""
    found = np.frombuffer(lengths, dtype=np.int64)
    if strategy == "wrapped":
        whole, rest = divmod(int(found.sum()), most)
        pieces = np.array([most] * whole + [rest] * (rest > 0))
        return Packs(pieces, np.arange(len(pieces)))
    packs = best_fit_decreasing(np.minimum(found, most), most)
    sizes = np.array([len(pack) for pack in packs])
    return Packs(np.array([length for pack in packs for length in pack]), sizes.cumsum() - sizes)


def best_fit_decreasing(lengths: Ints, most: int) -> list[list[int]]:
    """Lengths in each pack: the longest first, each where the least room is left behind it."""
    packs, rooms = list[list[int]](), list[int]()  # rooms that some pack has, rising
    having: dict[int, list[int]] = {}
    for length in sorted(lengths.tolist(), reverse=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            room, number = most, len(packs)
            packs.append([])
        else:
            room = rooms[place]
            number = having[room].pop()
            if not having[room]:
                del rooms[place], having[room]
        packs[number].append(length)
        left = room - length
        if left and left not in having:
            having[left] = []
            insort(rooms, left)
        if left:
            having[left].append(number)
    return packs
