"""Horovod: gradients are fused by a background thread that looks for work once per cycle.

Mirrors Horovod 0.19 with PyTorch (torch/optimizer.py, common/controller.cc). Its thread looks at
the ticks of a clock that begins anew with each backward pass. What is ready when follows from
nominal times, so that no straggler changes what travels together, and with it a bit of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf
from typing import Literal, Self

from pydantic import model_validator

from simdp.spec import Bandwidth, Bool, Bytes, Seconds, problem
from simdp.steps.buckets import MiB
from simdp.steps.facts import Facts, Ops, StateTensor, Step, num_trainable, trainable
from simdp.steps.ops import Reserve, Scale, Update
from simdp.steps.passes import backward, forward, send
from simdp.strategies.base import Strategy, copies_charged, uneven
from simdp.strategies.fusion import (
    BENCHMARK_NBYTES,
    FAST_NETWORK,
    PUBLISHED,
    fused,
    line_through,
    merged,
    next_cycle,
)
from simdp.strategies.reducer import Message, Reducer
from simdp.workload import Workload

HALF_ITEMSIZE = 2
"""Bytes per element with ``compression: fp16``."""


class Horovod(Strategy):
    """Horovod's ``DistributedOptimizer``, and the merging rules that were built on it.

    Attributes
    ----------
    fusion_threshold : float
        Size of the fusion buffer [bytes]: what ``merge: threshold`` fuses at most. Horovod's own
        default is 64 MiB, and 128 MiB since 0.21.
    cycle_time : float
        Time between two looks of the background thread [s]. Horovod's own default is 1 ms since
        0.21, and 5 ms before; with 0 gradients are sent at once.
    merge : {"threshold", "none", "all", "mg_wfbp"}
        What travels together: gradients of the same cycle, as Horovod fuses them; none, as with a
        threshold of 0; all, once backward is through; or what MG-WFBP's rule merges.
    overlap : bool
        False sends nothing before the end of backward.
    compression : {"none", "fp16"}
        ``fp16`` sends gradients in 16 bit, as ``hvd.Compression.fp16``.
    estimate : {"benchmark", "10gbe", "56g_ib"} or None
        Where ``merge: mg_wfbp`` has its alpha and beta from: a benchmark of two all_reduces on the
        cluster, or the figures that its authors typed in for a network and a number of ranks. None
        takes their figures for the network between the nodes, and a benchmark where there is one
        node, or another number of ranks.
    alpha, bandwidth : float or None
        Alpha [s] and the inverse of beta [bytes/s] themselves, instead of ``estimate``.
    profile_overhead : float
        What the profile that MG-WFBP's rule reads adds to the time of each gradient [s]: its hooks
        synchronise the device, which then idles until the host has launched the next kernels. Only
        what is merged follows from it; an estimate.
    charge_copies : bool or None
        Charge the copies into the fusion buffer and back, at the memory's bandwidth; a gradient
        that travels alone needs none. None does as the cluster's overheads say.
    weight_by_shard : bool
        Weight each rank's loss by its share of what counts, as for ``ddp``.
    """

    kind: Literal["horovod"] = "horovod"
    fusion_threshold: Bytes = 64.0 * MiB
    cycle_time: Seconds = 1e-3
    merge: Literal["threshold", "none", "all", "mg_wfbp"] = "threshold"
    overlap: Bool = True
    compression: Literal["none", "fp16"] = "none"
    estimate: Literal["benchmark", "10gbe", "56g_ib"] | None = None
    alpha: Seconds | None = None
    bandwidth: Bandwidth | None = None
    profile_overhead: Seconds = 100e-6
    charge_copies: Bool | None = None
    weight_by_shard: Bool = False

    @model_validator(mode="after")
    def _one_estimate(self) -> Self:
        if (self.alpha is None) != (self.bandwidth is None):
            given, other = (
                ("alpha", "bandwidth") if self.bandwidth is None else ("bandwidth", "alpha")
            )
            raise problem(f"{given}: MG-WFBP needs {other} beside it; give both, or an estimate.")
        if self.alpha is not None and self.estimate is not None:
            raise problem("estimate: alpha and bandwidth are given already; leave one of them out.")
        return self

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        known = PUBLISHED.get(self.estimate or "")
        if known is not None and self.merge == "mg_wfbp" and world_size not in {1, *known}:
            sizes = ", ".join(map(str, known))
            return (
                f"estimate: {self.estimate} was published for {sizes} ranks, but "
                f"cluster.world_size is {world_size}; give alpha and bandwidth, or use benchmark."
            )
        return uneven(workload)

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's tensors one by one, as ``hvd.broadcast_parameters`` does."""
        tags = count()
        tensors: list[StateTensor] = [*facts.parameters, *facts.buffers]
        for tensor in tensors:
            yield from send(facts, [tensor], tensor.name, 0, next(tags))
        yield Reserve(self._buffers(facts))

    def _buffers(self, facts: Facts) -> float:
        """Size of the fusion buffer, and of what compressed gradients take [bytes]."""
        elements = num_trainable(facts)
        compressed = float(elements * HALF_ITEMSIZE) if self.compression == "fp16" else 0.0
        if self.merge == "none" or len(trainable(facts)) == 1:
            return compressed
        if self.merge == "threshold":
            return compressed + self.fusion_threshold
        return compressed + float(elements * self._itemsize(facts.itemsize))

    def train_step(self, facts: Facts, step: Step) -> Ops:
        yield Scale(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            yield from forward(facts, micro)
            # As with backward_passes_per_step; and a single rank registers no hooks.
            if micro < last or facts.world_size == 1:
                yield from backward(facts, micro)
        if facts.world_size > 1:
            yield from self._reduced_backward(facts, step, last)
        yield Update()

    def _reduced_backward(self, facts: Facts, step: Step, micro: int) -> Ops:
        messages = self.messages(facts, step)
        reducer = Reducer(facts, messages, count(), after=facts.world_size)
        yield from reducer.backward(micro, self.overlap)
        for name in facts.unused:  # step() enqueues what no hook has
            yield from reducer.mark_ready(name)
        yield from reducer.finish()

    def messages(self, facts: Facts, step: Step) -> list[Message]:
        """What the current step sends, in order."""
        names = [*facts.ready_order, *facts.unused]
        times = step.ready_times(step.num_micro_steps - 1)
        end = times[-1]
        ready = list(times) if self.overlap else [end] * len(times)
        ready += [end] * len(facts.unused)
        dtype = "float16" if self.compression == "fp16" else None
        charged = copies_charged(self.charge_copies, facts)
        found = []
        for members in self._grouped(facts, ready, [facts.sizes[name] for name in names]):
            asked = ready[members[-1]]
            copied = charged and (len(members) > 1 or dtype is not None)
            of_group = [names[number] for number in members]
            found.append(
                Message(
                    facts.bucket(of_group, dtype, is_compressed=dtype is not None, room=0.0),
                    wait=next_cycle(asked, self.cycle_time) - asked,
                    copied=copied,
                    copied_back=copied,
                )
            )
        return found

    def _grouped(
        self, facts: Facts, ready: Sequence[float], num_elements: Sequence[int]
    ) -> Sequence[range]:
        itemsize = self._itemsize(facts.itemsize)
        if self.merge == "all":
            return [range(len(ready))]
        if self.merge == "mg_wfbp":
            profile = [time + i * self.profile_overhead for i, time in enumerate(ready, 1)]
            return merged(profile, num_elements, itemsize, *self._alpha_beta(facts))
        threshold = self.fusion_threshold if self.merge == "threshold" else 0.0
        nbytes = [float(elements * itemsize) for elements in num_elements]
        return [group.members for group in fused(ready, nbytes, threshold, self.cycle_time)]

    def _alpha_beta(self, facts: Facts) -> tuple[float, float]:
        """MG-WFBP's cost of a message [s], and of a byte [s/byte]."""
        if self.alpha is not None and self.bandwidth is not None:
            return self.alpha, 1 / self.bandwidth
        network = self.estimate
        bandwidth = facts.node_bandwidth() if network is None else inf
        if bandwidth < inf:
            network = "10gbe" if bandwidth < FAST_NETWORK else "56g_ib"
        known = PUBLISHED.get(network or "", {})
        if facts.world_size in known:
            return known[facts.world_size]
        short, long = map(facts.all_reduce_seconds, BENCHMARK_NBYTES)
        return line_through(short, long)

    def _itemsize(self, of_gradients: int) -> int:
        return HALF_ITEMSIZE if self.compression == "fp16" else of_gradients
