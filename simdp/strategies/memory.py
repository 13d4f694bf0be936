"""What a rank keeps in memory while it trains, as pure counting."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.sampling import chunk_sizes

Floats = NDArray[np.float64]


class RankMemory(NamedTuple):
    """Bytes on one device at the peak of a step, the end of backward.

    The names are those of ``memory_bytes`` in result.json.
    """

    parameters: float
    gradients: float
    optimizer_state: float
    buckets: float
    activations: float
    other: float

    def total(self) -> float:
        """Sum of all parts [bytes]."""
        return sum(self)


def rank_memory(workload: Workload, strategy: Strategy, microbatch: int) -> RankMemory:
    """Count what a rank keeps.

    Parameters
    ----------
    workload, strategy
        What is trained, and how.
    microbatch : int
        Samples of the rank's largest micro-step.

    Returns
    -------
    RankMemory
        ``other`` is the micro-batch itself.
    """
    itemsize = workload.itemsize
    weights = float(workload.model.num_parameters() * itemsize)
    batch = np.array([float(microbatch)])
    kept = sum(
        float(layer.activation_nbytes(batch, itemsize)[0]) for layer in workload.model.layers()
    )
    sample = prod(workload.model.input_shape()) * itemsize
    return RankMemory(
        parameters=weights,
        gradients=weights,
        optimizer_state=weights * len(workload.optimizer.state_names()),
        buckets=strategy.bucket_memory(weights),
        activations=kept,
        other=float(microbatch * sample),
    )


def largest_microbatches(workload: Workload, world_size: int) -> list[int]:
    """Samples of the largest micro-step of each rank."""
    if isinstance(workload.grad_accum, list):
        return [max(workload.grad_accum)] * world_size
    if workload.global_batch is None:
        return [workload.microbatch or 0] * world_size
    shards = chunk_sizes(workload.global_batch, world_size)
    shards += [0] * (world_size - len(shards))
    return [-(-shard // workload.grad_accum) for shard in shards]


def host_memory_needed(
    workload: Workload, strategy: Strategy, world_size: int, num_samples: int
) -> float:
    """Bytes that a run with numerics takes on this machine.

    Every rank has weights, gradients, optimizer state, activations and, where gradients are
    reduced, flat buffers; these are real here whatever the simulated device saves. Data and fresh
    weights are drawn in float64 and then cast, so that for a moment both are there.
    """
    one = rank_memory(workload, strategy, max(largest_microbatches(workload, world_size)))
    model, buffers = workload.model, one.parameters * bool(strategy.uses())
    each = one.parameters + one.gradients + one.optimizer_state + buffers
    each += 2 * (one.activations + one.other)  # and what flows between the layers
    sample = prod(model.input_shape()) + prod(model.output_shape())
    data = num_samples * sample * (8 + workload.itemsize)
    largest_tensor = max(parameter.num_elements for parameter in model.parameters())
    return each * world_size + float(data + 8 * largest_tensor * (os.cpu_count() or 1))


def host_memory() -> float:
    """Bytes of memory that this machine, or the container that we run in, has."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        return min(total, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit
        return total
