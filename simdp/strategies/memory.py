"""Memory of a rank during training, counted in bytes without a clock."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Literal

from simdp.cluster import Cluster
from simdp.cluster.allocators import Allocator
from simdp.steps.partition import Partition
from simdp.steps.program import Program
from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.lifetimes import lifetimes
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import chunk_sizes

INTEGER_ITEMSIZE = 8
"""Tokens, class indices and counters are int64, as torch's are."""

CONVOLUTION_AXES, LAID_OUT = 4, 3
"""Axes of a convolution's weight; how many more of it there are while NumPy works on it: the weight
in another order, its gradient in that order, and what is added to it. About as many there are of an
array that is rounded to 16 bits."""

CONTEXT_NBYTES = 0.2e9, 1113 * 2.0**20
"""CUDA context of a process: 0.2 GB on A10 and A4000, 0.5 on A100, 0.7 on H100 NVL (texts of
out-of-memory errors), and 1,113 MiB with the libraries of Megatron-DeepSpeed (bigscience,
tr3m-1B3)."""

NCCL_NBYTES = 0.1e9, 0.95e9
"""Buffers of NCCL's communicators on one node: nvidia-smi less reserved memory and the context, 20
runs on 1 to 8 GPUs (github.com/willgpaik/pytorch-ddp-scaling-benchmark). Across nodes nothing is
measured."""

WORKSPACE_NBYTES = 8 * 2.0**20, 2 * 32 * 2.0**20
"""Of cuBLAS: 8 MiB for each handle and stream, and 32 MiB on H100 (torch, CUDABlas.cpp)."""

FRAGMENTS = 0.0, 0.05
"""Unusable fragments of the caching allocator, as a share of its tensors: an estimate. It reserves
up to a fifth more, but releases free segments at the capacity."""


def beside_tensors(peak: float, world_size: int) -> tuple[float, float]:
    """The least and the most that a process takes of its device beside its tensors [bytes].

    Parameters
    ----------
    peak : float
        Of the tensors [bytes].
    world_size : int
        Number of ranks; one alone has no communicator.
    """
    least, most = (
        context + workspace + nccl * (world_size > 1) + share * peak
        for context, workspace, nccl, share in zip(
            CONTEXT_NBYTES, WORKSPACE_NBYTES, NCCL_NBYTES, FRAGMENTS, strict=True
        )
    )
    return least, most


def state_on_device(peak: float, world_size: int, memory: float) -> Literal["yes", "tight", "no"]:
    """Whether tensors at their peak fit a device, both in bytes.

    ``tight`` if that depends on `beside_tensors`.
    """
    least, most = beside_tensors(peak, world_size)
    return "yes" if peak + most <= memory else "tight" if peak + least <= memory else "no"


def room_for_tensors(memory: float, world_size: int) -> float:
    """What a device surely has room for, beside all else that a process takes [bytes]."""
    return (memory - beside_tensors(0.0, world_size)[1]) / (1 + FRAGMENTS[1])


def sample_nbytes(workload: Workload) -> list[float]:
    """Bytes of one sample of full length: each input of the model, and the target.

    Nothing of a model of which only times and sizes are known.
    """
    model, itemsize = workload.model, workload.itemsize
    if model.timed:
        return []
    nbytes = []
    for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
        integer = model.num_tokens(name) is not None
        nbytes.append(float(prod(shape) * (INTEGER_ITEMSIZE if integer else itemsize)))
    if workload.mode == "training":
        target_itemsize = INTEGER_ITEMSIZE if workload.loss.of_classes else itemsize
        nbytes.append(
            float(prod(workload.loss.target_shape(model.output_shape())) * target_itemsize)
        )
    return nbytes


def update_temporaries(
    workload: Workload, num_elements: Mapping[str, int], allocator: Allocator
) -> float:
    """Bytes that the optimizer takes while it works, beside its state.

    Tensor by tensor it is the largest one's temporaries; all at once those of all tensors of a
    parameter group are there together.

    Parameters
    ----------
    workload : Workload
        What is trained.
    num_elements : mapping of str to int
        What it updates, by parameter.
    allocator : Allocator
        Of the device.
    """
    together: dict[Optimizer, float] = {}
    most = 0.0
    for name, elements in num_elements.items():
        optimizer = workload.optimizer.for_parameter(name)
        taken = optimizer.num_temporaries() * allocator.taken(elements * workload.itemsize)
        if optimizer.foreach is False:
            most = max(most, taken)
        else:
            together[optimizer] = together.get(optimizer, 0.0) + taken
    return max([most, *together.values()])


def micro_step_nbytes(workload: Workload, num_samples: int) -> float:
    """Most bytes of activations, and of what flows, in a micro-step of so many samples."""
    if not num_samples:
        return 0.0
    life, now, most = lifetimes(workload, keeps=workload.mode == "training"), 0.0, 0.0
    for stage in (*life.forward, *reversed(life.backward)):
        now += sum(num_samples * t.per_sample + t.fixed for t in stage.taken)
        most = max(most, now)
        now -= sum(num_samples * t.per_sample + t.fixed for t in stage.given)
    return most


def fits(cluster: Cluster, peaks: Sequence[float]) -> bool:
    """Whether every device has room for what all of its ranks keep at their peaks [bytes]."""
    k, devices = cluster.ranks_per_device, cluster.devices()
    held = [sum(peaks[first : first + k]) for first in range(0, len(peaks), k)]
    return all(nbytes <= device.memory for nbytes, device in zip(held, devices[::k], strict=True))


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
    """Bytes that a run with numerics takes on this machine, at the fullest of its phases.

    Every rank has weights, room for gradients, optimizer state and, where gradients are reduced,
    flat buffers; these are real here whatever the simulated device saves. Data and fresh weights
    are drawn in float64 and then cast, so that for a moment both are there.
    """
    model, itemsize = workload.model, workload.itemsize
    program = Program.of(strategy, workload, world_size, num_samples)
    cores = min(os.cpu_count() or 1, world_size)
    target = workload.loss.target_shape(model.output_shape())
    sample = sum(map(prod, model.known_shapes())) + prod(target)
    data, drawn = num_samples * sum(sample_nbytes(workload)), float(num_samples * sample * 8)
    parameters = workload.graph.parameters
    largest = max(parameter.num_elements for parameter in parameters)
    whole = world_size * float(workload.graph.num_parameters * itemsize)
    drawing = whole + cores * largest * 8.0
    compared = 2.0 * largest * itemsize * (world_size > 1)  # whether replicas are identical
    passing = max(_host_passing(workload, world_size, cores, strategy.has_server), compared)
    if strategy.in_one_process and workload.mode == "training":
        from simdp.strategies.data_parallel import BUFFER_NBYTES

        # Every forward broadcasts the weights, piece by piece, to those that have samples.
        active = max(1, sum(size > 0 for size in largest_microbatches(workload, world_size)))
        passing += active * min(whole / world_size, BUFFER_NBYTES)
    lasting = world_size * _host_lasting(workload, strategy, program)
    if strategy.has_server:  # it has all that a worker has, and the mean of gradients for theirs
        lasting *= 1 + 1 / world_size
    lasting += _host_outputs(workload, world_size, num_samples)
    if program.partition is None:
        return data + max(drawn, drawing, lasting + passing)
    # All but gradients is there, and sent, before it is cut into pieces.
    in_steps = _host_dealt(workload, program, program.partition, passing)
    return data + max(drawn, drawing, lasting - whole, *in_steps)


def _host_dealt(
    workload: Workload, program: Program, dealt: Partition, passing: float
) -> list[float]:
    """Bytes of all ranks' arrays that have pieces: at the cut, and at the fullest of a step."""
    world_size, itemsize = dealt.ranks.size, workload.itemsize
    state, master = _num_state(workload) * itemsize, workload.precision.has_master
    replica = sum(dealt.sizes.values()) * itemsize
    whole, groups = float(world_size * replica), len(dealt.ranks)
    cut = (1 + master) * whole + world_size * state + groups * (replica + state)
    # Pieces of weights that stay whole, and have no master weights, are views.
    pieces = groups * (state + replica * (master or not dealt.kept.weights))
    kept = pieces + dealt.kept.weights * whole
    if dealt.kept.gradients:
        return [cut, kept + 2 * whole + passing]  # with the buffers in which they travel
    units = [world_size * itemsize * dealt.unit_elements(i) for i in range(len(dealt.units))]
    gathered = float(world_size * itemsize * program.gathered_elements)
    # Activations are there before gradients; these are whole, and flat, one unit at a time.
    return [cut, kept + gathered + passing, kept + gathered + groups * replica + 2 * max(units)]


def _host_lasting(workload: Workload, strategy: Strategy, program: Program) -> float:
    """Bytes of a rank's arrays that last from step to step."""
    whole = workload.graph.num_parameters * workload.itemsize
    learns = workload.mode == "training"
    copies = 1 + learns + workload.precision.has_master
    # A server's messages are not flattened here; one process has flat buffers piece by piece.
    if strategy.has_synchronous_ranks or (strategy.in_one_process and not learns):
        copies += program.facts.world_size > 1 or bool(program.calls)
    copies += program.keeps_errors
    state = _num_state(workload) + _num_outer(workload, program.outer_optimizer)
    return float(copies * whole + state * workload.itemsize)


def checkpoint_nbytes(workload: Workload, outer: Optimizer | None = None) -> float:
    """Bytes of all that training goes on from: weights, master weights, the optimizer's state.

    Once, whatever the replicas; 14 for each parameter of Adam in mixed precision. An outer
    optimizer adds its copy of the weights and its state.
    """
    whole, precision = float(workload.model.num_parameters()), workload.precision
    state = _num_state(workload) + _num_outer(workload, outer)
    nbytes = (whole + state) * workload.itemsize
    if precision.has_master:  # beside weights of fewer bits
        nbytes += whole * numpy_dtype(precision.weight_dtype(workload.dtype)).itemsize
    return nbytes


def _num_state(workload: Workload, optimizer: Optimizer | None = None) -> int:
    """Elements of an optimizer's state of all parameters that it may change."""
    optimizer = optimizer or workload.optimizer
    return sum(
        sum(optimizer.for_parameter(parameter.name).state_elements(parameter.shape))
        for parameter in workload.graph.trainable
    )


def _num_outer(workload: Workload, optimizer: Optimizer | None) -> int:
    """Elements of an outer optimizer's state, and of the weights that it updates."""
    if optimizer is None:
        return 0
    weights = sum(parameter.num_elements for parameter in workload.graph.trainable)
    return weights + _num_state(workload, optimizer)


def _host_outputs(workload: Workload, world_size: int, num_samples: int) -> float:
    """Bytes of what inference makes of every sample of a run, which is its result."""
    if workload.mode == "training":
        return 0.0
    steps, batch = workload.steps, workload.samples_per_step(world_size)
    samples = (workload.epochs or 1) * num_samples if steps is None else steps * batch
    return float(samples * prod(workload.model.output_shape()) * workload.itemsize)


def _host_passing(workload: Workload, world_size: int, cores: int, in_turn: bool) -> float:
    """Bytes of all ranks' arrays that come and go within a step.

    What has 16 bits is kept in 32-bit arrays, rounded weights among it; gradients of a later
    micro-step are there before they are added, and arrays before they are rounded, on the ranks
    that are being served. In turn, a rank is through with backward before the next one begins.
    """
    itemsize, low = workload.itemsize, workload.precision.low is not None
    accumulate = workload.grad_accum
    again = (len(accumulate) if isinstance(accumulate, list) else accumulate) > 1
    whole = workload.graph.num_parameters * itemsize
    of_samples = micro_step_nbytes(workload, max(largest_microbatches(workload, world_size)))
    parameters = workload.graph.parameters
    kernels = (p.num_elements for p in parameters if len(p.shape) == CONVOLUTION_AXES)
    laid_out = LAID_OUT * max(kernels, default=0) * itemsize
    # Without backward, nothing is there of ranks that are not being served.
    several = world_size if workload.mode == "training" else cores
    if in_turn:
        several = cores = 1
    rounding = LAID_OUT * low * max(p.num_elements for p in parameters) * itemsize
    rounded = workload.precision.has_master * whole  # else they are among the activations
    on_cores = again * whole + max(laid_out, rounding)
    return float(several * ((1 + low) * of_samples + rounded) + cores * on_cores)


def host_memory() -> float:
    """Bytes of memory that this machine, or the container that we run in, has."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        return min(total, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit
        return total
