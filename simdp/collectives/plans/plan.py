"""Collectives as data: Round, Part and Plan.

A plan says what goes where; it carries no data and no time. Everyone reads the same plan: the event
fabric, the vectorised fabric, the payload that moves real arrays, and the proof in `ledger`.

The contract of a plan
----------------------
* A transfer moves one chunk, or several that lie at equal distances, from ``src`` to ``dst``. Where
  ``reduce`` is true the receiver adds them to its own copies, else it replaces these. All transfers
  of a round read what was there when the round began; reductions of a round apply in the order in
  which they are listed.
* In time, a transfer starts when both ranks have entered the collective, what it needs has arrived
  (`Plan.order`), and the previous transfer from ``src`` to ``dst`` over the same channel is done.
  Rounds are no barriers.
* Every chunk is charged as the exact fraction ``nbytes / num_chunks``; the payload splits whole
  elements.
* A plan may be made of parts (`parts`): other plans, on groups of ranks, one after the other or at
  the same time.
* Vertices from ``world_size`` on are switches that add. They need not enter, and hold nothing at
  first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Bools, Ints

Offsets = Callable[[int, int], Ints]

Order = Literal["chunk", "rank", "ring", "chain"]


class Round(NamedTuple):
    """Transfers that may happen at the same time, as arrays of equal length.

    Attributes
    ----------
    src, dst : ndarray, int64
        Vertices: ranks, and switches that add.
    chunk : ndarray, int64
        Which chunk moves; the first of them where several do.
    reduce : bool or ndarray of bool
        Whether the receiver adds (True) or replaces (False).
    to : ndarray, int64, or None
        Where the chunk lands at the receiver; None stands for ``chunk``.
    num_chunks : int or ndarray, int64
        How many chunks move.
    stride : int
        Distance between the chunks of a transfer.
    channel : int or ndarray, int64
        Which of the connections from ``src`` to ``dst`` the transfer takes.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: bool | Bools
    to: Ints | None = None
    num_chunks: int | Ints = 1
    stride: int = 1
    channel: int | Ints = 0


class Moves(NamedTuple):
    """Chunks that move in one round, one by one, as arrays of equal length.

    Attributes
    ----------
    src, dst, chunk, to : ndarray, int64
        As in `Round`.
    reduce : ndarray of bool
        As in `Round`.
    """

    src: Ints
    dst: Ints
    chunk: Ints
    to: Ints
    reduce: Bools


def expand(transfers: Round) -> Moves:
    """List every chunk of every transfer of a round."""
    src, dst, chunk, reduce, to, count, stride, _ = transfers
    reduce = np.broadcast_to(reduce, src.shape)
    to = chunk if to is None else to
    if isinstance(count, int) and count == 1:
        return Moves(src, dst, chunk, to, reduce)
    counts = np.broadcast_to(count, src.shape)
    each = np.repeat(np.arange(len(src)), counts)
    ends = np.cumsum(counts)
    within = (np.arange(len(each)) - np.repeat(ends - counts, counts)) * stride
    return Moves(src[each], dst[each], chunk[each] + within, to[each] + within, reduce[each])


@dataclass(frozen=True, eq=False)
class Part:
    """A plan inside a plan, carried out by several groups of ranks side by side.

    Attributes
    ----------
    plan : Plan
        Without parts of its own.
    members : ndarray, int64, shape `(num_groups, plan.num_vertices)`
        Which vertices of the whole take the places 0, 1, ... in each group.
    first : ndarray, int64, shape `(num_groups,)`
        Where each group's chunk 0 lies among the chunks of the whole.
    step : int
        Distance between the chunks of a group.
    spread : ndarray, int64, shape `(chunks of the whole in one of the part,)`
        Where these lie, from the first one.
    after : tuple of int
        The parts that a rank must have left before it enters this one.
    """

    plan: Plan
    members: Ints
    first: Ints
    step: int
    spread: Ints
    after: tuple[int, ...]

    def moves(self) -> Iterator[Moves]:
        """Chunks that move, round by round, as vertices and chunks of the whole."""
        for m in self.plan.moves():
            src, dst = self.members[:, m.src], self.members[:, m.dst]

            def place(chunk: Ints) -> Ints:
                places: Ints = self.first[:, None, None] + (chunk * self.step)[:, None]
                return (places + self.spread).reshape(-1)

            def each(values: NDArray[np.generic], like: Ints = src) -> NDArray[np.generic]:
                return np.repeat(np.broadcast_to(values, like.shape).reshape(-1), len(self.spread))

            yield Moves(
                each(src).astype(np.int64, copy=False),
                each(dst).astype(np.int64, copy=False),
                place(m.chunk),
                place(m.to),
                each(m.reduce).astype(np.bool_, copy=False),
            )


@dataclass(frozen=True, eq=False)
class Plan:
    """One collective on a number of ranks: who sends which chunk to whom, round by round.

    Attributes
    ----------
    collective : str
        What it does, a key of `simdp.collectives.FAMILIES`.
    world_size, num_chunks : int
        Ranks, and pieces that the buffer is cut into.
    root : int
        The rank that gives or gets everything, where there is one.
    rounds : callable
        Starts the rounds from the beginning; there are none in a plan of parts.
    offsets : callable
        ``offsets(num_elements, itemsize)``: where each chunk begins in a buffer, and where the
        last one ends, shape `(num_chunks + 1,)`.
    order : {"chunk", "rank", "ring", "chain"}
        What a transfer waits for. ``chunk``: everything that came into the chunk at its source in
        earlier rounds. ``rank``: every rank takes part in one round after the other, as with
        MPI's sendrecv; both ranks must be through with all that they send and receive in earlier
        rounds. ``ring``: as ``chunk``, and every rank sends one chunk to the same rank in every
        round, the one that it received ``slices`` rounds ago. ``chain``: as ``chunk``, and every
        chunk goes from the first vertex of ``route`` to the last one, all in the same order.
    slices : int
        Pieces that every chunk of a ring is cut into, which follow each other.
    route : ndarray, int64, or None
        The vertices of a chain, or of a ring, in the order in which chunks pass them. None where
        there is no such order, or where a ring's first round tells it.
    num_scratch : int
        Chunks beyond ``num_chunks`` that every rank holds for a while. Of an all_to_all, which
        leaves its input as it is, the first ``num_chunks`` of them are the result.
    num_switches : int
        Vertices beyond the ranks.
    parts : tuple of Part
        What the plan is made of, if it is.
    """

    collective: str
    world_size: int
    num_chunks: int
    root: int
    rounds: Callable[[], Iterator[Round]]
    offsets: Offsets
    order: Order = "chunk"
    slices: int = 1
    route: Ints | None = None
    num_scratch: int = 0
    num_switches: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def num_vertices(self) -> int:
        """Ranks and switches."""
        return self.world_size + self.num_switches

    @property
    def num_slots(self) -> int:
        """Chunks that a rank can hold."""
        return self.num_chunks + self.num_scratch

    @cached_property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return sum(1 for _ in self.rounds())

    @cached_property
    def everything(self) -> tuple[Part, ...]:
        """The parts; of a plan without any, itself as the only one."""
        one = np.zeros(1, dtype=np.int64)
        return self.parts or (Part(self, np.arange(self.num_vertices)[None, :], one, 1, one, ()),)

    def moves(self) -> Iterator[Moves]:
        """Chunks that move, round by round, part by part."""
        for part in self.parts:
            yield from part.moves()
        for transfers in self.rounds():
            yield expand(transfers)

    @cached_property
    def sends_per_rank(self) -> Ints:
        """How many chunks each rank sends, shape `(world_size,)`."""
        return self._per_vertex(np.ones(1, dtype=np.int64))[: self.world_size]

    @cached_property
    def num_transfers(self) -> int:
        """Transfers of the whole plan."""
        if self.parts:
            return sum(len(part.members) * part.plan.num_transfers for part in self.parts)
        if self.order == "ring":
            return self.num_rounds * self.world_size
        if self.order == "chain":
            return self.num_chunks * (self.world_size - 1)
        return sum(len(transfers.src) for transfers in self.rounds())

    def _per_vertex(self, scale: Ints) -> Ints:
        sends = np.zeros(self.num_vertices, dtype=np.int64)
        for part in self.parts:
            of_place = part.plan._per_vertex(scale) * len(part.spread)
            # NumPy 2.4 reads past the end of what it should repeat itself here.
            np.add.at(sends, part.members, np.broadcast_to(of_place, part.members.shape))
        if self.order == "ring":
            return np.full(self.world_size, self.num_rounds, dtype=np.int64)
        if self.order == "chain":
            assert self.route is not None
            sends[self.route[:-1]] = self.num_chunks
            return sends
        for transfers in self.rounds():
            away = transfers.src != transfers.dst  # what a rank moves at home is not sent
            np.add.at(sends, transfers.src, away * transfers.num_chunks)
        return sends


def even_offsets(num_chunks: int) -> Offsets:
    """Cut a buffer into chunks whose numbers of elements differ by one at most."""

    def offsets(num_elements: int, itemsize: int) -> Ints:
        return np.arange(num_chunks + 1, dtype=np.int64) * num_elements // num_chunks

    return offsets
