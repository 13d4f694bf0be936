"""Naive algorithms: one rank talks to every other one directly, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import AllReduce, Broadcast, Gather, Reduce, Round, Scatter, Simple
from simdp.collectives.plans.layout import Layout


def _others(world_size: int, root: int) -> Ints:
    """Every rank but the root, in order."""
    return np.delete(np.arange(world_size), root)


def _collect(others: Ints, root: int, chunk: Ints, reduce: bool) -> Round:
    return Round(others, np.full_like(others, root), chunk, reduce)


def _hand_out(others: Ints, root: int, chunk: Ints) -> Round:
    return Round(np.full_like(others, root), others, chunk, False)


class NaiveAllReduce(Simple, AllReduce):
    """Every rank sends its buffer to rank 0, which adds them in rank order and sends the sum."""

    kind: Literal["naive"] = "naive"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        whole = np.zeros_like(others)
        yield _collect(others, root, whole, True)
        yield _hand_out(others, root, whole)


class NaiveReduce(Simple, Reduce):
    """Every rank sends its buffer to the root, which adds them in rank order."""

    kind: Literal["naive"] = "naive"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _collect(others, root, np.zeros_like(others), True)


class NaiveBroadcast(Simple, Broadcast):
    """The root sends its buffer to every rank."""

    kind: Literal["naive"] = "naive"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _hand_out(others, root, np.zeros_like(others))


class NaiveScatter(Simple, Scatter):
    """The root sends every rank its piece."""

    kind: Literal["naive"] = "naive"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _hand_out(others, root, others)


class NaiveGather(Simple, Gather):
    """Every rank sends the root its piece."""

    kind: Literal["naive"] = "naive"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _collect(others, root, others, False)
