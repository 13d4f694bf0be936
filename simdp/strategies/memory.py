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


def largest_microbatch(workload: Workload, world_size: int) -> int:
    """Samples of the largest micro-step that any rank has."""
    if isinstance(workload.grad_accum, list):
        return max(workload.grad_accum)
    if workload.global_batch is not None:
        shard = -(-workload.global_batch // world_size)
        return -(-shard // workload.grad_accum)
    return workload.microbatch or 0


def host_memory_needed(
    workload: Workload, strategy: Strategy, world_size: int, num_samples: int
) -> float:
    """Bytes that a run with numerics takes on this machine: every rank's arrays and the data."""
    one = rank_memory(workload, strategy, largest_microbatch(workload, world_size))
    model = workload.model
    sample = prod(model.input_shape()) + prod(model.output_shape())
    # The data is drawn in float64 and then cast, so that both copies exist for a moment.
    return one.total() * world_size + float(num_samples * sample * (8 + workload.itemsize))


def host_memory() -> float:
    """Bytes of memory that this machine, or the container that we run in, has."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        return min(total, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit
        return total
