"""nn.DataParallel, and training on a single device.

Mirrors torch 2.13: nn/parallel (data_parallel.py, scatter_gather.py, replicate.py,
parallel_apply.py, _functions.py), nn/parallel/comm.py and csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.steps.facts import Facts, Ops, StateTensor, StepContext, Tags
from simdp.steps.ops import (
    CopyOut,
    Gather,
    HandBack,
    LossOfAll,
    Meet,
    Reduce,
    Replicate,
    TakeSums,
    Update,
    Wait,
)
from simdp.steps.partition import MiB
from simdp.steps.passes import backward, forward_of_all, nbytes_of, packed, scatter
from simdp.strategies.base import (
    Departure,
    Strategy,
    fill_up,
    infer_in_processes,
    of_weights,
    own_gradients,
)
from simdp.workload import Workload
from simdp.workload.compute import Host
from simdp.workload.layers.base import Parameter

BUFFER_NBYTES = 10 * MiB
"""Flat buffers in which tensors are broadcast and gradients summed (torch: buffer_size of
comm.broadcast_coalesced and comm.reduce_add_coalesced) [bytes]."""


class DataParallel(Strategy):
    """``torch.nn.DataParallel``: scatters the batch over the devices of one process.

    Every forward copies the model from device 0 to the devices with samples, and gathers the
    outputs on one device, which computes the loss. Gradients are summed on device 0, where the
    optimizer runs. Changes to the copies' buffers are lost.
    """

    in_one_process: ClassVar[bool] = True
    wrapper: ClassVar[str] = "DataParallel"

    kind: Literal["data_parallel"] = "data_parallel"
    loss_in_forward: Bool = False
    """Every device computes the loss of its own samples; the scalars are gathered and their mean is
    minimised. With pieces of different sizes this is another loss."""
    gil: Float = Field(1.0, ge=0, le=1)
    """Fraction of the host's time in forward for which a thread holds the interpreter lock: with k
    active devices, an operator of forward takes the host ``1 + gil (k - 1)`` times as long
    (``workload.host.operator``; without one, a launch the device). Backward's threads need no
    lock."""
    output_device: Int = Field(0, ge=0)
    """Device of the gathered outputs and of the targets."""

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if workload.global_batch is None:
            batch = workload.samples_per_step(world_size)
            return (
                "kind: data_parallel scatters one batch over its devices; write "
                f"workload.global_batch: {batch} instead of a batch per rank."
            )
        if self.output_device >= world_size:
            return (
                f"output_device: device {self.output_device} does not exist; with world_size "
                f"{world_size}, devices are 0 ... {world_size - 1}."
            )
        if workload.graph.is_synchronised:
            return (
                "kind: SyncBatchNorm needs several processes, but data_parallel is one; use "
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

    @property
    def interpreter_lock(self) -> float:
        return self.gil

    def departures(self, workload: Workload) -> list[Departure]:
        if not self.loss_in_forward:
            return []
        return [
            of_weights(workload, {"strategy.loss_in_forward": False})._replace(
                key="strategy.loss_in_forward"
            )
        ]

    def host_of(self, workload: Workload, world_size: int) -> Host:
        return workload.host.of_one_process() if world_size > 1 else workload.host

    def setup(self, facts: Facts) -> Ops:
        """Copy the model out for inference; training copies it in every forward."""
        if facts.is_inference:
            yield from copy_out(facts, [True] * facts.world_size, count())

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        root, losses, tags = self.output_device, self.loss_in_forward, count()
        for micro in range(step.num_micro_steps):
            yield from scatter(facts, micro, targets=losses)
            yield from copy_out(facts, step.active(micro), tags)
            yield from forward_of_all(facts, micro, self.gil, losses)
            yield Gather(micro, root, losses)
            if not losses:
                yield LossOfAll(micro, root)
            yield HandBack(micro, root, losses)
            yield from backward(facts, micro, gil=self.gil)
            yield from self._sum(facts, step.active(micro), micro, tags)
        yield Update(tuple(device == 0 for device in range(facts.world_size)))
        yield Meet()

    def _sum(self, facts: Facts, active: Sequence[bool], micro: int, tags: Tags) -> Ops:
        """Sum all gradients on device 0 after backward: one autograd function copies the model."""
        group, sent = _with_root(active), list[int]()
        for number, names in enumerate(pieces(facts.parameters, facts.itemsize)):
            sent.append(next(tags))
            yield Reduce(sent[-1], f"gradients {number}", facts.bucket(names), group)
        yield Wait(tuple(sent))
        yield TakeSums(micro)

    def infer_step(self, facts: Facts, step: StepContext) -> Ops:
        """Scatter the batch, run the copies made by the setup, and gather the outputs."""
        yield from scatter(facts, 0)
        yield from forward_of_all(facts, 0, self.gil)
        yield Gather(0, self.output_device)
        yield Meet()


def copy_out(facts: Facts, active: Sequence[bool], tags: Tags) -> Ops:
    """Replicate modules; copy device 0's parameters and buffers in pieces of `BUFFER_NBYTES`."""
    group = _with_root(active)
    if len(group) == 1:
        return
    chosen: list[tuple[str, Sequence[StateTensor]]] = [("parameters", facts.parameters)]
    for integer, label in ((False, "buffers"), (True, "counters")):
        chosen.append((label, [buffer for buffer in facts.buffers if buffer.integer == integer]))
    copied = list[int]()
    for label, tensors in chosen:
        for number, sent in enumerate(packed(facts, tensors, BUFFER_NBYTES)):
            tag, names = next(tags), tuple(tensor.name for tensor in sent)
            yield CopyOut(tag, f"{label} {number}", nbytes_of(facts, sent), names, group)
            copied.append(tag)
    yield Replicate(group)  # while the devices copy
    yield Wait(tuple(copied))


def _with_root(active: Sequence[bool]) -> tuple[int, ...]:
    """Return the active ranks, and rank 0 in any case."""
    return tuple(rank for rank, there in enumerate(active) if there or not rank)


def pieces(parameters: Sequence[Parameter], itemsize: int) -> list[list[str]]:
    """Sort gradients into the buffers in which they are summed.

    A buffer closes before a tensor that does not fit (torch: _take_tensors in _utils.py), unlike
    those of copies, which close when full.
    """
    nbytes = {parameter.name: parameter.num_elements * itemsize for parameter in parameters}
    return fill_up(list(nbytes), nbytes, BUFFER_NBYTES)


class Single(Strategy):
    """Plain training on one device."""

    max_ranks: ClassVar[int | None] = 1

    kind: Literal["single"] = "single"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if world_size == 1:
            return None
        return (
            f"kind: single trains on one device, but cluster.world_size is {world_size}; set it to "
            "1, or use strategy: ddp."
        )

    def setup(self, facts: Facts) -> Ops:
        """Do nothing."""
        yield from ()

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        yield from own_gradients(facts, step)
        yield Update()

    def infer_step(self, facts: Facts, step: StepContext) -> Ops:
        yield from infer_in_processes(facts, scatters=False)
