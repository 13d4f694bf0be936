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

    Attributes
    ----------
    step : int
        -1 before the first step.
    activity, name : str
        As in a span.
    seconds : ndarray, shape `(world_size,)`
        How long each rank's device is busy [s].
    nbytes : float
        As in a span.
    """

    step: int
    activity: str
    name: str
    seconds: Floats
    nbytes: float = 0.0


class FusedWork(NamedTuple):
    """Work that nothing comes between, in one piece for who asks about times alone.

    Attributes
    ----------
    step : int
        As in `Work`.
    activities : tuple of str
        Of each piece of work.
    seconds : ndarray, shape `(num_works, world_size)`
        How long each keeps each rank's device busy [s].
    """

    step: int
    activities: tuple[str, ...]
    seconds: Floats

    def works(self) -> Iterator[ComputeWork]:
        """The pieces of work, one by one."""
        for activity, seconds in zip(self.activities, self.seconds, strict=True):
            yield ComputeWork(self.step, activity, "", seconds)


class Launch(NamedTuple):
    """The start of a collective on a communication stream, which takes them one by one.

    Attributes
    ----------
    step, name
        As in `Work`.
    call : int
        Number of the collective; the same on every rank.
    plan : Plan
        Who sends what to whom.
    nbytes : float
        The whole buffer [bytes].
    record : bool
        Whether every transfer gets a span of its own.
    stream : int
        Which of the ranks' communication streams takes it; those of different process groups run
        side by side.
    wait : float
        It does not enter its stream before so long after the compute stream asked for it [s].
    message : float
        How long it keeps its stream before it begins [s].
    seconds : float or None
        How long it takes from when the last rank has come, on every rank [s]; None where its
        transfers tell.
    after : tuple of int
        Collectives, of any stream, that a rank must have left before it begins with this one.
    groups : ndarray, shape `(num_groups, group size)`, int64, or None
        Process groups that each do it by themselves; None where all ranks do it together.
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
        """Whether every rank does it by itself."""
        return num_ranks == 1 if self.groups is None else self.groups.shape[1] == 1

    def latest(self, instants: Floats) -> Floats:
        """For each rank the latest instant of those that do it together [s].

        Ranks are the last axis; runs of all ranks side by side, before it, have nothing in common.
        """
        if self.groups is None:
            return np.broadcast_to(instants.max(axis=-1, keepdims=True), instants.shape)
        found = instants.copy()
        found[self.groups] = instants[self.groups].max(axis=1, keepdims=True)
        return found


class ClockWait(NamedTuple):
    """The compute stream waits for collectives.

    Attributes
    ----------
    calls : tuple of int
        Their numbers.
    """

    calls: tuple[int, ...]


class ClockBarrier(NamedTuple):
    """The compute streams wait until all of them have come here, at no cost.

    Attributes
    ----------
    step
        As in `Work`.
    """

    step: int


class MemoryChange(NamedTuple):
    """Every rank takes memory at this point of its compute stream, or gives it back.

    Attributes
    ----------
    step
        As in `Work`.
    part : str
        One of `simdp.results.memory.MEMORY_PARTS`.
    nbytes : float or ndarray, shape `(world_size,)`
        How much each rank takes [bytes]; negative gives back.
    """

    step: int
    part: str
    nbytes: float | Floats


class Feed(NamedTuple):
    """The compute stream waits for the next batch of every rank.

    Attributes
    ----------
    step
        As in `Work`.
    number : int
        Of the batch, counted from 0 over the whole run.
    samples : ndarray, shape `(world_size,)`
        Of each rank's batch.
    pipeline : Pipeline
        Tells when the batch is there.
    """

    step: int
    number: int
    samples: Floats
    pipeline: Pipeline


ClockOp = ComputeWork | FusedWork | Launch | ClockWait | ClockBarrier | Feed | MemoryChange
