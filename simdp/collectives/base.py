"""Collectives as data: Round, Plan, and the families of algorithms that make plans.

A plan says what goes where, in rounds; it carries no data and no time. Everyone reads the same
plan: the event fabric, the vectorised fabric, the payload that moves real arrays, and the proof in
`ledger`.

The contract of a plan
----------------------
* A transfer moves one chunk from ``src`` to ``dst``. Where ``reduce`` is true the receiver adds it
  to its own copy of the chunk, else it replaces its copy. All transfers of a round read what was
  there when the round began; reductions of a round apply in the order in which they are listed.
* In time, a transfer starts when both ranks have entered the collective, every transfer of an
  earlier round into ``(src, chunk)`` has arrived, and the previous transfer from ``src`` to ``dst``
  is done. Rounds are no barriers.
* Every chunk is charged as the exact fraction ``nbytes / num_chunks``; the payload splits whole
  elements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.spec import Spec

Ints = NDArray[np.int64]
Offsets = Callable[[int, int], Ints]


class Round(NamedTuple):
    """Transfers that may happen at the same time, as arrays of equal length.

    Attributes
    ----------
    src, dst : ndarray, int64
        Ranks.
    chunk : ndarray, int64
        Which chunk moves.
    reduce : bool or ndarray of bool
        Whether the receiver adds (True) or replaces (False).
    """

    src: Ints
    dst: Ints
    chunk: Ints
    reduce: bool | NDArray[np.bool_]


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
        Starts the rounds from the beginning.
    offsets : callable
        ``offsets(num_elements, itemsize)``: where each chunk begins in a buffer, and where the
        last one ends, shape `(num_chunks + 1,)`.
    repeats : bool
        Every round has the same ``src`` and ``dst``, each rank sends once and receives once in it,
        and a transfer needs, of the earlier rounds, only what its source received in the last one.
        Then a clock needs memory for two rounds instead of every chunk of every rank.
    """

    collective: str
    world_size: int
    num_chunks: int
    root: int
    rounds: Callable[[], Iterator[Round]]
    offsets: Offsets
    repeats: bool = False

    @cached_property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return sum(1 for _ in self.rounds())

    @cached_property
    def sends_per_rank(self) -> Ints:
        """How many chunks each rank sends, shape `(world_size,)`."""
        if self.repeats and self.world_size > 1:
            return np.full(self.world_size, self.num_rounds)
        sends = np.zeros(self.world_size, dtype=np.int64)
        for transfers in self.rounds():
            np.add.at(sends, transfers.src, 1)
        return sends


def even_offsets(num_chunks: int) -> Offsets:
    """Cut a buffer into chunks whose numbers of elements differ by one at most."""

    def offsets(num_elements: int, itemsize: int) -> Ints:
        return np.arange(num_chunks + 1, dtype=np.int64) * num_elements // num_chunks

    return offsets


class Algorithm(Spec):
    """Base of every collective algorithm. A member states its rounds; `plan` does the rest."""

    collective: ClassVar[str]
    """What it does; set by the family."""

    kind: str

    @abstractmethod
    def rounds(self, world_size: int, num_chunks: int, root: int) -> Iterator[Round]:
        """Generate the rounds for two ranks or more."""

    @abstractmethod
    def num_chunks(self, world_size: int, nbytes: float) -> int:
        """Number of pieces that a buffer of ``nbytes`` is cut into, at least 1."""

    def offsets(self, world_size: int, num_chunks: int) -> Offsets:
        """How the payload cuts a buffer into chunks."""
        return even_offsets(num_chunks)

    def repeats(self) -> bool:
        """Whether the plan keeps the promise of `Plan.repeats`."""
        return False

    def plan(self, world_size: int, nbytes: float, root: int = 0) -> Plan:
        """Plan the collective.

        Parameters
        ----------
        world_size : int
            Number of ranks, 1 or more.
        nbytes : float
            Bytes of the whole buffer: what an all_reduce or a broadcast leaves on every rank, what
            a reduce_scatter or a scatter takes apart, what an all_gather or a gather puts together.
        root : int
            For broadcast, reduce, scatter and gather.

        Returns
        -------
        Plan
            Equal arguments give the same object, so that what is derived from it is kept.

        Raises
        ------
        ValueError
            If ``world_size``, ``nbytes`` or ``root`` is out of range.
        """
        if world_size < 1:
            raise ValueError(f"world_size must be >= 1, got {world_size}")
        if nbytes < 0:
            raise ValueError(f"nbytes must be >= 0, got {nbytes}")
        if not 0 <= root < world_size:
            raise ValueError(f"root must be in 0 ... {world_size - 1}, got {root}")
        return _plan(self, world_size, self.num_chunks(world_size, nbytes), root)


@lru_cache(maxsize=256)
def _plan(algorithm: Algorithm, world_size: int, num_chunks: int, root: int) -> Plan:
    def rounds() -> Iterator[Round]:
        return algorithm.rounds(world_size, num_chunks, root) if world_size > 1 else iter(())

    return Plan(
        collective=algorithm.collective,
        world_size=world_size,
        num_chunks=num_chunks,
        root=root,
        rounds=rounds,
        offsets=algorithm.offsets(world_size, num_chunks),
        repeats=algorithm.repeats(),
    )


class AllReduce(Algorithm):
    """Every rank ends with the sum of all ranks' buffers."""

    collective: ClassVar[str] = "all_reduce"


class ReduceScatter(Algorithm):
    """Rank r ends with the sum of all ranks' r-th piece."""

    collective: ClassVar[str] = "reduce_scatter"


class AllGather(Algorithm):
    """Every rank ends with every rank's piece."""

    collective: ClassVar[str] = "all_gather"


class Broadcast(Algorithm):
    """Every rank ends with the root's buffer."""

    collective: ClassVar[str] = "broadcast"


class Reduce(Algorithm):
    """The root ends with the sum of all ranks' buffers."""

    collective: ClassVar[str] = "reduce"


class Scatter(Algorithm):
    """Rank r ends with the root's r-th piece."""

    collective: ClassVar[str] = "scatter"


class Gather(Algorithm):
    """The root ends with every rank's piece."""

    collective: ClassVar[str] = "gather"


class Barrier(Algorithm):
    """No rank leaves before every rank has entered; nothing but the message itself is moved."""

    collective: ClassVar[str] = "barrier"
