"""Operations of the clock: work on the compute stream, collectives, and waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.collectives import Plan
from simdp.engine.samples import Pipeline


class ComputeWork(NamedTuple):
    """Work on the compute stream of every rank.

    ``step`` is -1 before the first step; ``seconds`` is the busy time of each rank's device [s];
    the others are as in a span.
    """

    step: int
    activity: str
    name: str
    seconds: Floats
    nbytes: float = 0.0


class FusedWork(NamedTuple):
    """Consecutive work in one piece, for runs that need only times.

    ``seconds``, of shape `(num_works, world_size)`, are the busy times of each rank's device [s].
    """

    step: int
    activities: tuple[str, ...]
    seconds: Floats

    def works(self) -> Iterator[ComputeWork]:
        """Yield the pieces of work."""
        for activity, seconds in zip(self.activities, self.seconds, strict=True):
            yield ComputeWork(self.step, activity, "", seconds)


class Launch(NamedTuple):
    """The start of a collective on a communication stream, which runs them one by one.

    Attributes
    ----------
    step, name
        As in `ComputeWork`.
    call : int
        Number of the collective; the same on every rank.
    plan : Plan
        Its transfers.
    nbytes : float
        The whole buffer [bytes].
    record : bool
        Whether every transfer gets a span of its own.
    stream : int
        Communication stream of the ranks; those of different process groups run concurrently.
    wait : float
        Minimum time from the launch on the compute stream to the entry into the stream [s].
    message : float
        Time in its stream before it begins [s].
    seconds : float or None
        Duration from the last rank's arrival, on every rank [s]; None: simulated from its
        transfers.
    after : tuple of int
        Collectives, of any stream, that a rank must have left before it begins this one.
    groups : ndarray, shape `(num_groups, group size)`, int64, or None
        Process groups that each run the collective separately; None: all ranks together.
    """

    step: int
    name: str
    call: int
    plan: Plan
    nbytes: float
    record: bool
    stream: int = 0
    wait: float = 0.0
    message: float = 0.0
    seconds: float | None = None
    after: tuple[int, ...] = ()
    groups: Ints | None = None

    def alone(self, num_ranks: int) -> bool:
        """Whether every rank is a group of its own."""
        return num_ranks == 1 if self.groups is None else self.groups.shape[1] == 1

    def latest(self, instants: Floats) -> Floats:
        """Latest instant within each rank's group [s]; the last axis is the ranks."""
        if self.groups is None:
            return np.broadcast_to(instants.max(axis=-1, keepdims=True), instants.shape)
        found = instants.copy()
        found[self.groups] = instants[self.groups].max(axis=1, keepdims=True)
        return found


class ClockWait(NamedTuple):
    """The compute stream waits for collectives, given by number."""

    calls: tuple[int, ...]


class ClockBarrier(NamedTuple):
    """The compute streams wait for each other, at no cost."""

    step: int


class MemoryChange(NamedTuple):
    """Every rank allocates or frees memory at this point of its compute stream.

    ``part`` is one of `simdp.results.memory.MEMORY_PARTS`; negative ``nbytes`` free.
    """

    step: int
    part: str
    nbytes: float | Floats


class Feed(NamedTuple):
    """The compute stream waits for the next batch of every rank.

    ``number`` is that of the batch, from 0 over the whole run; ``samples`` are each rank's.
    """

    step: int
    number: int
    samples: Floats
    pipeline: Pipeline


ClockOp = ComputeWork | FusedWork | Launch | ClockWait | ClockBarrier | Feed | MemoryChange
