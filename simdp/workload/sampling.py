"""Which rank trains on which samples in which step: torch's DistributedSampler and torch.chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Ints
from simdp.workload.participants import Participants

Incomplete = Literal["step", "micro-batch"] | None
"""What is left out of an epoch if it is not full."""


def distributed_sampler(order: Ints, world_size: int, drop_last: bool) -> Ints:
    """Deal an epoch's order out to the ranks as torch's DistributedSampler does.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order of the samples.
    world_size : int
        Number of ranks, W.
    drop_last : bool
        Cut the tail that does not fill every rank, instead of padding from the head of the order.

    Returns
    -------
    ndarray, shape `(world_size, samples_per_rank)`
        Rank r takes positions r, r + W, r + 2 W, ...
    """
    n = len(order)
    if drop_last and n % world_size:
        per_rank = -(-(n - world_size) // world_size)
    else:
        per_rank = -(-n // world_size)
    total = max(per_rank, 0) * world_size
    return np.resize(order, total).reshape(-1, world_size).T  # resize repeats from the head


@dataclass(frozen=True, eq=False)
class Parts(Sequence[Ints]):
    """What each rank is given of an order: ``parts[r]`` are the sample indices of rank r.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        Sample indices.
    begins, sizes : ndarray, shape `(world_size,)`, int64
        Where in the order each rank's part begins, and how long it is.
    """

    order: Ints
    begins: Ints
    sizes: Ints

    @classmethod
    def even(cls, order: Ints, world_size: int) -> Parts:
        """Cut an order into parts of equal length."""
        each = len(order) // world_size
        return cls(order, each * np.arange(world_size), np.full(world_size, each))

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, rank: Any) -> Any:
        begin = self.begins[rank]
        return self.order[begin : begin + self.sizes[rank]]

    def cut(self, begin: Ints | int, length: Ints | int) -> Parts:
        """The piece of each part that begins at a place in it, or what there is of the piece."""
        begin = np.minimum(begin, self.sizes)
        return Parts(self.order, self.begins + begin, np.minimum(length, self.sizes - begin))

    def only(self, wanted: Bools) -> Parts:
        """The parts of some ranks; the others get nothing."""
        return Parts(self.order, self.begins, np.where(wanted, self.sizes, 0))

    def largest(self, values: Ints) -> Ints:
        """Largest value of each part's samples, shape `(world_size,)`; 0 where there are none."""
        return self._reduced(values, np.maximum)

    def totals(self, values: Array) -> Array:
        """Sum of the values of each part's samples, shape `(world_size,)`."""
        return self._reduced(values, np.add)

    def _reduced(self, values: Array, how: np.ufunc) -> Array:
        found = np.zeros(len(self), dtype=values.dtype)
        there = np.flatnonzero(self.sizes)
        sizes = self.sizes[there]
        first = np.cumsum(sizes) - sizes
        place = np.repeat(self.begins[there] - first, sizes) + np.arange(sizes.sum())
        if len(there):
            found[there] = how.reduceat(values[self.order[place]], first)
        return found


def uneven_sampler(order: Ints, samples_per_rank: list[int]) -> Parts:
    """Deal an epoch's order out in contiguous parts of given sizes, one per rank."""
    sizes = np.array(samples_per_rank)
    return Parts(order, np.cumsum(sizes) - sizes, sizes)


def chunk_sizes(num_samples: int, parts: int) -> list[int]:
    """Sizes of torch.chunk's pieces: 30 over 8 is 4,4,4,4,4,4,4,2; 10 over 8 is 2,2,2,2,2.

    Parameters
    ----------
    num_samples, parts : int
        What is cut, and into how many pieces at most.

    Returns
    -------
    list of int
        At most ``parts`` sizes.
    """
    if num_samples == 0:
        return []
    size = -(-num_samples // parts)
    return [min(size, num_samples - begin) for begin in range(0, num_samples, size)]


class Start(NamedTuple):
    """Where a run goes on.

    Attributes
    ----------
    epoch : int
        From 0.
    num_samples : int
        Samples of its order that have been dealt already.
    num_steps : int
        Steps of the run that are done.
    """

    epoch: int = 0
    num_samples: int = 0
    num_steps: int = 0

    def upcoming(self, num_samples: int, least: int) -> Start:
        """The same, or the next epoch's beginning if less than ``least`` is left of this one."""
        if self.num_samples and num_samples - self.num_samples < least:
            return Start(self.epoch + 1, 0, self.num_steps)
        return self


START = Start()
"""The beginning."""


@dataclass(frozen=True)
class StepBatches:
    """The samples of one optimizer step.

    Attributes
    ----------
    micro : list of Parts
        ``micro[i][r]``: sample indices of rank r in micro-step i; empty where it gets nothing.
    sizes : ndarray, shape `(num_micro, world_size)`, int64
        Their lengths.
    closes_epoch : bool
        Whether this is the last step of an epoch, or of the run.
    epoch : int
        Which one, from 0; always 0 in steps that stand for others of their kind.
    participants : Participants or None
        Who takes part; None: all ranks do, and all count.
    """

    micro: list[Parts]
    sizes: Ints
    closes_epoch: bool = False
    epoch: int = 0
    participants: Participants | None = None

    @classmethod
    def of(cls, micro: list[Parts]) -> StepBatches:
        """Count the samples of each rank in each micro-step."""
        return cls(micro, np.stack([parts.sizes for parts in micro]))

    def only(self, wanted: Bools) -> StepBatches:
        """The same step, in which some ranks alone have samples."""
        micro = [parts.only(wanted) for parts in self.micro]
        return replace(self, micro=micro, sizes=np.where(wanted, self.sizes, 0))


def kinds_of(
    rest: Sequence[StepBatches], each: Sequence[StepBatches], num_steps: int
) -> list[StepBatches]:
    """Steps whose ranks have other numbers of samples, or that close an epoch; the first first.

    Parameters
    ----------
    rest : sequence of StepBatches
        Steps of what is left of the first epoch.
    each : sequence of StepBatches
        Of every epoch after it.
    num_steps : int
        Steps of the run, which may end within an epoch.
    """
    found: dict[tuple[bytes, bool], StepBatches] = {}
    for number, batches in enumerate(rest if rest is not each else ()):
        closes = number == len(rest) - 1
        found[batches.sizes.tobytes(), closes] = replace(batches, closes_epoch=closes)
    last = (num_steps - len(rest) - 1) % max(len(each), 1)
    for number, batches in enumerate(each):
        for closes in sorted({number == len(each) - 1, *[True] * (number == last)}):
            key = (batches.sizes.tobytes(), closes)
            found.setdefault(key, replace(batches, closes_epoch=closes))
    return list(found.values())


def steps_from_microbatches(
    per_rank: Ints | Parts,
    microbatch: int,
    accumulate: int | list[int],
    drops: Incomplete | bool = None,
) -> Iterator[StepBatches]:
    """Cut each rank's samples of an epoch into micro-batches and these into steps.

    Parameters
    ----------
    per_rank : ndarray, shape `(world_size, samples_per_rank)`, or Parts
        Samples of each rank. One that runs out before others gets nothing in the last steps.
    microbatch : int
        Samples per rank and micro-step.
    accumulate : int or list of int
        Micro-steps per step, or their sizes.
    drops : {"step", "micro-batch"}, bool or None
        What is left out at the end of the epoch if a rank has not all of it; True is a step.
    """
    sizes = accumulate if isinstance(accumulate, list) else [microbatch] * accumulate
    step = sum(sizes)
    if not isinstance(per_rank, Parts):
        per_rank = Parts.even(np.ascontiguousarray(per_rank).reshape(-1), len(per_rank))
    begins = np.cumsum(sizes) - sizes
    for begin in range(0, int(per_rank.sizes.max()), step):
        parts = per_rank.cut(begin, step)
        if drops in ("step", True):
            parts = parts.only(parts.sizes == step)
        micro = [parts.cut(int(b), size) for b, size in zip(begins, sizes, strict=True)]
        if drops == "micro-batch":
            full = [part.sizes == size for part, size in zip(micro, sizes, strict=True)]
            micro = [part.only(there) for part, there in zip(micro, full, strict=True)]
        micro = [parts for parts in micro if parts.sizes.any()]
        if not micro:
            return
        yield StepBatches.of(micro)


def steps_from_global_batches(
    order: Ints,
    global_batch: int,
    world_size: int,
    accumulate: int | list[int],
    drop_last: bool,
    sizes: Callable[[int, int], Ints] | None = None,
) -> Iterator[StepBatches]:
    """Cut an epoch's order into global batches, each into contiguous torch.chunk pieces per rank.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order of the samples.
    global_batch : int
        Samples of all ranks per step.
    world_size : int
        Number of ranks.
    accumulate : int or list of int
        Each rank's piece is cut again, by torch.chunk into that many, or into these sizes.
    drop_last : bool
        Leave out an incomplete batch at the end of the epoch.
    sizes : callable, optional
        Tells the samples of each rank, in place of torch.chunk, of a batch by its number in the
        epoch and its samples.
    """
    for number, begin in enumerate(range(0, len(order), global_batch)):
        batch = order[begin : begin + global_batch]
        if len(batch) < global_batch and drop_last:
            return
        shard = -(-len(batch) // world_size)
        whole = np.full(world_size, len(batch))
        shards = Parts(batch, np.zeros_like(whole), whole).cut(shard * np.arange(world_size), shard)
        if sizes is not None:
            each = sizes(number, len(batch))
            shards = Parts(batch, np.cumsum(each) - each, each)
        if isinstance(accumulate, list):
            ends = np.cumsum(accumulate)
            micro = [
                shards.cut(int(end) - size, size)
                for end, size in zip(ends, accumulate, strict=True)
            ]
        else:
            piece = -(-shards.sizes // accumulate)  # as torch.chunk cuts each shard again
            micro = [shards.cut(i * piece, piece) for i in range(accumulate)]
        yield StepBatches.of([parts for parts in micro if parts.sizes.any()])
