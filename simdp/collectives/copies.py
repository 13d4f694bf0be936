"""Copies between one rank and others, of unequal pieces, one after the other.

What a process does that holds all devices itself, and copies from one to another (cudaMemcpyPeer),
as torch.nn.DataParallel does: no collective library is asked. These plans are therefore in no
family, and no scenario chooses between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.plans.plan import Plan, Round, even_offsets


@lru_cache(maxsize=256)
def copies_from(root: int, sizes: tuple[int, ...]) -> Plan:
    """A rank gives every other one its piece of a buffer, in the order of the ranks.

    Parameters
    ----------
    root : int
        Who has the whole buffer.
    sizes : tuple of int
        How many equal parts of the buffer each rank's piece is made of; the pieces lie one behind
        the other. A rank may get nothing.

    Returns
    -------
    Plan
        A round per copy. Equal arguments give the same object.
    """
    return _plan("scatter", root, sizes)


@lru_cache(maxsize=256)
def copies_to(root: int, sizes: tuple[int, ...]) -> Plan:
    """A rank gets every other one's piece of a buffer, in the order of the ranks.

    Parameters and result are those of `copies_from`.
    """
    return _plan("gather", root, sizes)


def _plan(collective: str, root: int, sizes: tuple[int, ...]) -> Plan:
    if not 0 <= root < len(sizes):
        raise ValueError(f"root must be in 0 ... {len(sizes) - 1}, got {root}")
    if min(sizes) < 0 or not any(sizes):
        raise ValueError(f"sizes must be >= 0 and not all 0, got {sizes}")
    unit = gcd(*sizes)  # as few chunks as cut between the pieces
    counts = [size // unit for size in sizes]
    begins = np.cumsum(counts) - counts
    others = [rank for rank, count in enumerate(counts) if count and rank != root]

    def rounds() -> Iterator[Round]:
        for rank in others:
            src, dst = (root, rank) if collective == "scatter" else (rank, root)
            yield Round(_one(src), _one(dst), _one(int(begins[rank])), False, None, counts[rank])

    num_chunks = sum(counts)
    return Plan(
        collective=collective,
        world_size=len(sizes),
        num_chunks=num_chunks,
        root=root,
        rounds=rounds,
        offsets=even_offsets(num_chunks),
        order="rank",
    )


def _one(value: int) -> Ints:
    return np.array([value], dtype=np.int64)
