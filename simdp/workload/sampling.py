"""Which rank trains on which samples in which step: torch's DistributedSampler and torch.chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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


def uneven_sampler(order: Ints, samples_per_rank: list[int]) -> list[Ints]:
    """Deal an epoch's order out in contiguous parts of given sizes, one per rank."""
    return _cut(order, samples_per_rank)


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


@dataclass(frozen=True)
class StepBatches:
    """The samples of one optimizer step.

    Attributes
    ----------
    micro : list of list of ndarray
        ``micro[i][r]``: sample indices of rank r in micro-step i; empty where it gets nothing.
    sizes : ndarray, shape `(num_micro, world_size)`, int64
        Their lengths.
    closes_epoch : bool
        Whether this is the last step of an epoch, or of the run.
    """

    micro: list[list[Ints]]
    sizes: Ints
    closes_epoch: bool = False

    @classmethod
    def of(cls, micro: list[list[Ints]]) -> StepBatches:
        """Count the samples of each rank in each micro-step."""
        return cls(micro, np.array([[len(part) for part in ranks] for ranks in micro]))


def _cut(indices: Ints, sizes: list[int]) -> list[Ints]:
    """Cut indices into pieces of the given sizes, until they run out."""
    ends = np.cumsum(sizes)
    return [indices[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def steps_from_microbatches(
    per_rank: Sequence[Ints], microbatch: int, accumulate: int | list[int], drop_last: bool
) -> Iterator[StepBatches]:
    """Cut each rank's samples of an epoch into micro-batches and these into steps.

    Parameters
    ----------
    per_rank : sequence of ndarray
        Samples of each rank. One that runs out before others gets nothing in the last steps.
    microbatch : int
        Samples per rank and micro-step.
    accumulate : int or list of int
        Micro-steps per step, or their sizes.
    drop_last : bool
        Leave out a rank's incomplete step at the end of the epoch.
    """
    sizes = accumulate if isinstance(accumulate, list) else [microbatch] * accumulate
    step = sum(sizes)
    for begin in range(0, max(map(len, per_rank)), step):
        parts = [rank[begin : begin + step] for rank in per_rank]
        parts = [part[: len(part) if len(part) == step or not drop_last else 0] for part in parts]
        micro = [list(ranks) for ranks in zip(*(_cut(p, sizes) for p in parts), strict=True)]
        micro = [ranks for ranks in micro if any(len(part) for part in ranks)]
        if not micro:
            return
        yield StepBatches.of(micro)


def steps_from_global_batches(
    order: Ints, global_batch: int, world_size: int, accumulate: int | list[int], drop_last: bool
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
    """
    for begin in range(0, len(order), global_batch):
        batch = order[begin : begin + global_batch]
        if len(batch) < global_batch and drop_last:
            return
        shards = _cut(batch, _filled(chunk_sizes(len(batch), world_size), world_size))
        pieces = []
        for shard in shards:
            if isinstance(accumulate, list):
                sizes = accumulate
            else:
                sizes = _filled(chunk_sizes(len(shard), accumulate), accumulate)
            pieces.append(_cut(shard, sizes))
        micro = [list(ranks) for ranks in zip(*pieces, strict=True)]
        yield StepBatches.of([ranks for ranks in micro if any(len(part) for part in ranks)])


def _filled(sizes: list[int], length: int) -> list[int]:
    return sizes + [0] * (length - len(sizes))
