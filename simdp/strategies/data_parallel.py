"""DataParallel: one process that has all devices, and copies the model out for every forward.

Mirrors torch 2.13: nn/parallel (data_parallel.py, scatter_gather.py, replicate.py,
parallel_apply.py, _functions.py), nn/parallel/comm.py and csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.strategies.base import Rank, Script, Strategy, Tensor
from simdp.strategies.buckets import MiB, assign
from simdp.workload import Workload
from simdp.workload.layers import Parameter

BUFFER_NBYTES = 10 * MiB
"""Tensors are copied out, and gradients summed, in flat buffers of this size (torch: buffer_size of
comm.broadcast_coalesced and comm.reduce_add_coalesced)."""


class DataParallel(Strategy):
    """``torch.nn.DataParallel``: the batch is cut over the devices of one process.

    Every forward copies the model from device 0 to the devices that get samples, and gathers the
    outputs on one device, which computes the loss. Gradients are summed on device 0, where the
    optimizer is. What the copies' buffers learn is lost.

    Attributes
    ----------
    loss_in_forward : bool
        Every device computes the loss of its own samples, the scalars are gathered, and their mean
        is what is made small. With pieces of different sizes this is another loss.
    gil : float
        The part of a kernel's launch for which its thread holds the interpreter's lock: with k
        devices at work, a launch of forward takes ``1 + gil (k - 1)`` times as long. Backward runs
        in threads that need no lock.
    output_device : int
        Where outputs are gathered, and the targets are.
    """

    infers: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    kind: Literal["data_parallel"] = "data_parallel"
    loss_in_forward: Bool = False
    gil: Float = Field(1.0, ge=0, le=1)
    output_device: Int = Field(0, ge=0)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if workload.global_batch is None:
            each = workload.samples_per_step(world_size)
            return (
                "kind: data_parallel cuts one batch over its devices; write workload.global_batch: "
                f"{each} in place of what each rank gets."
            )
        if self.output_device >= world_size:
            return (
                f"output_device: device {self.output_device} does not exist; with world_size "
                f"{world_size}, devices are 0 ... {world_size - 1}."
            )
        if workload.graph.is_synchronised:
            return (
                "kind: SyncBatchNorm talks to other processes, and data_parallel is one; use "
                "strategy: ddp, or plain batch norm."
            )
        if self.loss_in_forward and workload.mode == "inference":
            return "loss_in_forward: mode: inference computes no loss; leave this out."
        if self.loss_in_forward and workload.loss.kind == "none":
            return (
                f"loss_in_forward: the model {workload.model.kind} has times but no loss; leave "
                "this out."
            )
        return None

    def scatters(self, workload: Workload) -> bool:
        return True

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        if workload.mode == "inference":
            return [("broadcast", 0)]
        return [("broadcast", 0), ("reduce", 0)]

    def sent_nbytes(self, rank: Rank) -> list[int]:
        sizes = {p.name: p.num_elements * rank.itemsize for p in rank.parameters}
        parts = pieces(rank.parameters, rank.itemsize)
        return [sum(sizes[name] for name in names) for names in parts]

    def setup(self, rank: Rank) -> Script:
        """Copy the model out where it never changes; else that is done for every forward."""
        if rank.infers:
            yield from copy_out(rank, [True] * rank.world_size)

    def train_step(self, rank: Rank) -> Script:
        root, losses = self.output_device, self.loss_in_forward
        for micro_step in range(rank.num_micro_steps):
            yield from rank.scatter_batch(micro_step, targets=losses)
            yield from copy_out(rank, rank.active(micro_step))
            yield from rank.forward_together(micro_step, self.gil, losses)
            if losses:
                yield from rank.gather_losses(micro_step, root)
            else:
                yield from rank.gather_outputs(micro_step, root)
                yield from rank.loss_of_outputs(micro_step, root)
            yield from rank.backward_together(micro_step, root, losses)
            yield from self._sum(rank, micro_step)
        yield from rank.update([device == 0 for device in range(rank.world_size)])
        yield from rank.meet()

    def _sum(self, rank: Rank, micro_step: int) -> Script:
        """Sum gradients on device 0, all of them when the last one is there.

        The copies are made by one autograd function, whose backward has to have them all.
        """
        pending = []
        for number, names in enumerate(pieces(rank.parameters, rank.itemsize)):
            call = yield from rank.reduce_gradients(names, micro_step, f"gradients {number}")
            pending.append(call)
        yield from rank.wait(pending)
        yield from rank.take_sums(micro_step)

    def infer_step(self, rank: Rank) -> Script:
        """Hand the batch out, and gather what the copies of the setup make of it."""
        yield from rank.scatter_batch(0)
        yield from rank.forward_together(0, self.gil)
        yield from rank.gather_outputs(0, self.output_device)
        yield from rank.meet()


def copy_out(rank: Rank, active: Sequence[bool]) -> Script:
    """Copy device 0's parameters and then its buffers to others, in pieces of `BUFFER_NBYTES`."""
    chosen: list[tuple[str, Sequence[Tensor]]] = [("parameters", rank.parameters)]
    for integer, label in ((False, "buffers"), (True, "counters")):
        chosen.append((label, [buffer for buffer in rank.buffers if buffer.integer == integer]))
    for label, tensors in chosen:
        by_name = {tensor.name: tensor for tensor in tensors}
        itemsize = rank.itemsize_of(tensors[0]) if tensors else 1
        for number, names in enumerate(assign(tensors, itemsize, [BUFFER_NBYTES])):
            sent = [by_name[name] for name in names]
            yield from rank.replicate(sent, active, f"{label} {number}")


def pieces(parameters: Sequence[Parameter], itemsize: int) -> list[list[str]]:
    """Sort gradients into the buffers in which they are summed.

    A buffer closes before the tensor that would not fit (torch: _take_tensors in _utils.py), where
    those that are copied out close when they are full.

    Parameters
    ----------
    parameters : sequence of Parameter
        In order of registration.
    itemsize : int
        Bytes per element of a gradient.
    """
    found: list[list[str]] = []
    held = 0
    for parameter in parameters:
        nbytes = parameter.num_elements * itemsize
        if not found or held + nbytes > BUFFER_NBYTES:
            found.append([])
            held = 0
        found[-1].append(parameter.name)
        held += nbytes
    return found
