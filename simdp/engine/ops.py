"""Operations of the clock: work on the compute stream, collectives, waiting, input pipelines."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.collectives import Plan
from simdp.workload.compute import Input
from simdp.workload.layers.base import Shape


class LookedAt(NamedTuple):
    """Shapes of micro-batches, and their attended token pairs.

    ``shapes`` are the different ones per sample, ``which`` the index of each rank's; ``shares`` are
    the fractions of the token pairs of one sample of that length that fused attention computes
    (empty if 1).
    """

    shapes: list[tuple[Shape, ...]]
    which: Ints
    shares: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Cache key of times."""
        return tuple(self.shapes), self.which.tobytes(), self.shares


class RecordedPass:
    """Forward or backward of a micro-batch on every rank.

    Attributes
    ----------
    activity : {"forward", "backward", "tail"}
        Row of the times.
    batch : ndarray, shape `(world_size,)`
        Samples of each rank.
    looked_at : LookedAt
        Shapes of the ranks' micro-batches.
    accumulates : bool
        Whether it adds to gradients of an earlier micro-step.
    """

    def __init__(
        self, activity: str, batch: Ints, looked_at: LookedAt, accumulates: bool = False
    ) -> None:
        self.activity, self.batch, self.looked_at = activity, batch, looked_at
        self.accumulates = accumulates

    @property
    def key(self) -> Hashable:
        """Equal for passes that take the same time."""
        return self.activity, self.batch.tobytes(), self.looked_at.key, self.accumulates

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedPass) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CallWork(NamedTuple):
    """Work of a call in a pass."""

    of: RecordedPass
    call: int


class BytesMoved(NamedTuple):
    """Bytes that a device reads and writes in its memory."""

    nbytes: float


class UpdateWork(NamedTuple):
    """A part of an update, on the ranks for which ``active`` is 1."""

    name: str
    active: tuple[float, ...]


class HostWork(NamedTuple):
    """Work that takes the same time with every device."""


Origin = CallWork | BytesMoved | UpdateWork | HostWork | None
"""Computation that determines the time of work on another device; None: unknown."""


class ComputeWork(NamedTuple):
    """Work on the compute stream of every rank.

    ``step`` is -1 before the first step; ``seconds`` is the busy time of each rank's device [s];
    the others are as in a span, except ``origin``.
    """

    step: int
    activity: str
    name: str
    seconds: Floats
    nbytes: float = 0.0
    origin: Origin = None


class FusedWork(NamedTuple):
    """Consecutive work in one piece, for runs that need only times.

    ``seconds``, of shape `(num_works, world_size)`, are the busy times of each rank's device [s];
    ``origins`` those of the works.
    """

    step: int
    activities: tuple[str, ...]
    seconds: Floats
    origins: tuple[Origin, ...] = ()

    def works(self) -> Iterator[ComputeWork]:
        """Yield the pieces of work."""
        origins = self.origins or (None,) * len(self.activities)
        for activity, seconds, origin in zip(self.activities, self.seconds, origins, strict=True):
            yield ComputeWork(self.step, activity, "", seconds, 0.0, origin)


class Launch(NamedTuple):
    """The start of a collective on a communication stream, which runs them one by one."""

    step: int
    """As in `ComputeWork`."""
    name: str
    """As in `ComputeWork`."""
    call: int
    """Number of the collective; the same on every rank."""
    plan: Plan
    """Its transfers."""
    nbytes: float
    """The whole buffer [bytes]."""
    record: bool
    """Whether every transfer gets a span of its own."""
    stream: int = 0
    """Communication stream of the ranks; those of different process groups run concurrently."""
    wait: float = 0.0
    """Minimum time from the launch on the compute stream to the entry into the stream [s]."""
    message: float = 0.0
    """Time in its stream before it begins [s]."""
    seconds: float | None = None
    """Duration from the last rank's arrival, on every rank [s]; None: simulated from its
    transfers."""
    after: tuple[int, ...] = ()
    """Collectives, of any stream, that a rank must have left before it begins this one."""
    groups: Ints | None = None
    """Process groups that each run the collective separately; None: all ranks together; shape
    `(num_groups, group size)`."""
    copied: float = 0.0
    """Bytes that are copied in device memory within ``wait``."""
    slowdown: float = 0.0
    """Relative increase of compute time while it runs."""

    def alone(self, num_ranks: int) -> bool:
        """Whether every rank is a group of its own."""
        return num_ranks == 1 if self.groups is None else self.groups.shape[1] == 1

    def latest(self, instants: Floats) -> Floats:
        """Latest instant within each rank's group [s]; the last axis is the ranks."""
        if self.groups is None:
            latest: Floats = np.maximum(instants, instants.max(axis=-1, keepdims=True))
            return latest
        latest = instants.copy()
        latest[self.groups] = instants[self.groups].max(axis=1, keepdims=True)
        return latest


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


class Pipeline:
    """The input pipelines of all ranks, which start at the first request.

    Batch k is made by worker ``k mod w`` of w, after its batch ``k - w`` and after the training
    process
    has taken batch ``k - w p`` (p: prefetch), since torch's DataLoader issues its next order
    whenever a
    batch is taken::

        made(k)   = max(made(k - w), taken(k - w p)) + per_sample * samples
        taken(k)  = max(asked(k), made(k))

    The compute stream requests a batch when it needs it. With a pinned copy it is requested when
    the
    previous batch is handed over, and copied during compute::

        handed(k) = max(clock, taken(k) + copy)

    Otherwise the compute stream copies: ``handed(k) = taken(k) + copy``.

    Parameters
    ----------
    spec : Input
        The workload's.
    world_size, local_size : int
        Ranks, and ranks of one node.
    """

    def __init__(self, spec: Input, world_size: int, local_size: int) -> None:
        self.spec, self._sharers = spec, min(spec.shared_link, local_size)
        # Without workers there is no prefetch.
        self._fetches = spec.pinned and spec.sample_size > 0 and spec.workers > 0
        self._ahead = spec.workers * spec.prefetch
        self._begin = np.zeros(world_size)
        self._made = np.zeros((max(spec.workers, 1), world_size))
        self._taken = np.zeros((max(self._ahead, 1), world_size))
        self._handed = np.zeros(world_size)

    def hand_over(
        self, number: int, samples: Floats, clock: Floats, ranks: Ints
    ) -> tuple[Floats, Floats]:
        """Hand a batch to some ranks; each rank's batches come in order.

        ``number`` is that of the batch, from 0; ``samples`` are each rank's, maybe 0; ``clock`` is
        the instant at which its compute stream needs it [s]. Returns the end of each compute
        stream's wait, and of its copy [s].
        """
        if number == 0:
            self._begin[ranks] = clock
        requested = self._handed[ranks] if self._fetches and number else clock
        taken = np.maximum(requested, self._batch_made(number, samples, requested, ranks))
        if self._ahead:
            self._taken[number % self._ahead, ranks] = taken
        copy = self._copy_time(samples)
        there, end = taken, taken + copy
        if self._fetches or (self.spec.pinned and not self.spec.workers):
            there = end = np.maximum(clock, end)
        self._handed[ranks] = end
        return there, end

    def _batch_made(self, number: int, samples: Floats, requested: Floats, ranks: Ints) -> Floats:
        workers, load = self.spec.workers, self.spec.per_sample * samples
        if not workers:
            return requested + load
        free = self._begin[ranks]
        if number >= workers:
            free = self._made[number % workers, ranks]
        if number >= self._ahead:
            free = np.maximum(free, self._taken[number % self._ahead, ranks])
        self._made[number % workers, ranks] = free + load
        return free + load

    def _copy_time(self, samples: Floats) -> Floats:
        sizes, which = np.unique(samples, return_inverse=True)
        seconds = [self.spec.copy_time(float(size), self._sharers) for size in sizes]
        return np.array(seconds)[which]


class Feed(NamedTuple):
    """The compute stream waits for the next batch of every rank.

    ``number`` is that of the batch, from 0 over the whole run; ``samples`` are each rank's.
    """

    step: int
    number: int
    samples: Floats
    pipeline: Pipeline


ClockOp = ComputeWork | FusedWork | Launch | ClockWait | ClockBarrier | Feed | MemoryChange
