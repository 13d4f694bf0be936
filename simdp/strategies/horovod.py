"""Horovod and its tensor fusion.

Gradients are numbered in the order in which they become ready.

Mirrors Horovod 0.19 with PyTorch (torch/optimizer.py, common/controller.cc). Its background thread
polls in cycles that start with each backward pass. Fusion follows from nominal times, so that no
straggler changes which gradients are fused, and with it a bit of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import ceil, inf, sqrt
from typing import Literal, NamedTuple, Self

from pydantic import model_validator

from simdp.spec import Bandwidth, Bool, Bytes, Seconds, problem
from simdp.steps.facts import Facts, Ops, StateTensor, StepContext, num_trainable, trainable
from simdp.steps.ops import Reserve, ScaleLoss, Update
from simdp.steps.partition import MiB
from simdp.steps.passes import backward, forward, send
from simdp.strategies.base import Departure, Strategy, copies_charged, uneven
from simdp.strategies.ddp import Message, Reducer
from simdp.workload import Workload

# Fusion -------------------------------------------------------------------------------------------

SMALLEST_MESSAGE = 8192
"""Elements below which MG-WFBP always merges (its authors' optimizer)."""

BENCHMARK_NBYTES = (8 * 1024 * 4, 63 * 8 * 1024 * 4)
"""Smallest and largest all_reduce of the benchmark of alpha and beta by MG-WFBP's authors [bytes].
"""

PUBLISHED = {
    "10gbe": {
        2: (2.554691138304671e-06, 9.837548167872609e-11),
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (5.230272768511732e-04, 8.570746975492128e-10),
        16: (9.080981007148093e-04, 7.395651186836712e-10),
        32: (3 * 1.3476410788581382e-03, 8.643300782166769e-10),
        64: (3 * 2.3476410788581382e-03, 9.643300782166769e-10),
    },
    "56g_ib": {
        2: (2.554691138304671e-06, 9.837548167872609e-11),
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (3 * 2.3583677659915685e-04, 4.0594787739537565e-10),
        32: (4.0632079996292579e-04, 1.5 * 3.2713239529771973e-10),
        64: (8.0632079996292579e-04, 1.8 * 3.2713239529771973e-10),
    },
}
"""Alpha [s] and beta [s/byte] by network and number of ranks, from the optimizer of MG-WFBP's
authors (github.com/HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py), which uses the
second network for all faster than 10 Gbit/s."""

FAST_NETWORK = sqrt(10e9 / 8 * 56e9 / 8)
"""Bandwidth of a node above which 56 Gbit/s is nearer than 10, as a ratio [bytes/s]."""


class FusionGroup(NamedTuple):
    """The numbers of gradients that are sent together, and when [s]."""

    members: range
    launch: float


def next_cycle(ready: float, cycle_time: float) -> float:
    """Return the first multiple of ``cycle_time`` [s] not before ``ready`` [s]; cycles may be 0."""
    if not cycle_time:
        return ready
    return max(ceil(ready / cycle_time) * cycle_time, ready)


def fused(
    ready: Sequence[float], nbytes: Sequence[float], threshold: float, cycle_time: float
) -> list[FusionGroup]:
    """Fuse like the background thread of Horovod, which polls once per ``cycle_time`` [s].

    Of the gradients that are ``ready`` [s] in a cycle, the first and those that follow it are sent
    together while they fit in the ``threshold`` [bytes]; then the next, and so on. A larger
    gradient is sent alone.

    References
    ----------
    Horovod 0.19, horovod/common/controller.cc, FuseResponses; docs/tensor-fusion.rst.
    """
    groups: list[FusionGroup] = []
    held = 0.0
    for number, (instant, size) in enumerate(zip(ready, nbytes, strict=True)):
        launch = next_cycle(instant, cycle_time)
        fits = groups and groups[-1].launch == launch and held + size <= threshold
        first = groups.pop().members.start if fits else number
        held = held + size if fits else size
        groups.append(FusionGroup(range(first, number + 1), launch))
    return groups


def merged(
    ready: Sequence[float],
    num_elements: Sequence[int],
    itemsize: int,
    alpha: float,
    beta: float,
) -> list[range]:
    """Merge gradients by MG-WFBP's rule into ranges of their numbers.

    A message of S bytes is predicted to take ``alpha + beta S`` [s]. The next gradient joins it if
    it is ``ready`` [s] before the message ends, and if waiting for it delays the message by less
    than the ``alpha`` of a separate message.

    References
    ----------
    Shi, Chu, Li, "MG-WFBP: Efficient data communication for distributed synchronous SGD
    algorithms", INFOCOM 2019, arXiv 1811.11141, algorithm 1; with `SMALLEST_MESSAGE` as in the
    authors' optimizer.
    """
    groups: list[range] = []
    first, held, free = 0, 0, 0.0
    for last in range(len(ready) - 1):
        held += num_elements[last]
        start = max(free, ready[last])
        end = start + alpha + beta * held * itemsize
        following = ready[last + 1]
        worthwhile = following < end and following - start < alpha
        if worthwhile or held < SMALLEST_MESSAGE:
            continue
        groups.append(range(first, last + 1))
        first, held, free = last + 1, 0, end
    groups.append(range(first, len(ready)))
    return groups


def line_through(short: float, long: float) -> tuple[float, float]:
    """Return alpha [s] and beta [s/byte] from the times of the two `BENCHMARK_NBYTES` [s]."""
    small, large = BENCHMARK_NBYTES
    beta = max(long - short, 0.0) / (large - small)
    return max(short - beta * small, 0.0), beta


HALF_ITEMSIZE = 2
"""Bytes per element with ``compression: fp16``."""


class Horovod(Strategy):
    """Horovod's ``DistributedOptimizer``, and merging rules built on it."""

    kind: Literal["horovod"] = "horovod"
    fusion_threshold: Bytes = 64.0 * MiB
    """Size of the fusion buffer, the limit of ``merge: threshold`` [bytes]. Horovod's own default
    is 64 MiB, and 128 MiB since 0.21."""
    cycle_time: Seconds = 1e-3
    """Time between two polls of the background thread [s]. Horovod's own default is 1 ms since
    0.21, and 5 ms before; with 0 gradients are sent at once."""
    merge: Literal["threshold", "none", "all", "mg_wfbp"] = "threshold"
    """Which gradients are sent together: those of the same cycle, as Horovod fuses them; none, as
    with a threshold of 0; all, after backward; or by MG-WFBP's rule."""
    overlap: Bool = True
    """False sends nothing before the end of backward."""
    compression: Literal["none", "fp16"] = "none"
    """``fp16`` sends gradients in 16 bit, as ``hvd.Compression.fp16``."""
    estimate: Literal["benchmark", "10gbe", "56g_ib"] | None = None
    """Source of alpha and beta for ``merge: mg_wfbp``: a benchmark of two all_reduces on the
    cluster, or the authors' figures for a network and a number of ranks. None takes their figures
    for the network between the nodes, and a benchmark on one node or with another number of
    ranks."""
    alpha: Seconds | None = None
    """Alpha [s] and the inverse of beta [bytes/s], instead of ``estimate``."""
    bandwidth: Bandwidth | None = None
    """Alpha [s] and the inverse of beta [bytes/s], instead of ``estimate``."""
    profile_overhead: Seconds = 100e-6
    """Time that the profile read by MG-WFBP's rule adds to each gradient [s]: its hooks synchronise
    the device, which then idles until the host has launched the next kernels. It only affects
    merging; an estimate."""
    charge_copies: Bool | None = None
    """Charge the copies into the fusion buffer and back, at memory bandwidth; a gradient sent alone
    needs none. None follows the cluster's overheads."""
    weight_by_shard: Bool = False
    """Weight each rank's loss by its share of the global batch, as for ``ddp``."""

    @model_validator(mode="after")
    def _one_estimate(self) -> Self:
        if (self.alpha is None) != (self.bandwidth is None):
            given, other = (
                ("alpha", "bandwidth") if self.bandwidth is None else ("bandwidth", "alpha")
            )
            raise problem(f"{given}: MG-WFBP needs {other} too; give both, or an estimate.")
        if self.alpha is not None and self.estimate is not None:
            raise problem("estimate: alpha and bandwidth are given already; leave one of them out.")
        return self

    def departures(self, workload: Workload) -> list[Departure]:
        departures = super().departures(workload)
        if self.compression != "none":
            key, text = "strategy.compression", f"gradients are sent as {self.compression}"
            departures.append(Departure("compressed_gradients", key, text, {key: "none"}))
        return departures

    def sent_as(self) -> str:
        return super().sent_as() if self.compression == "none" else f"as {self.compression}"

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
        """Return the size of the fusion buffer and of compressed gradients [bytes]."""
        elements = num_trainable(facts)
        compressed = float(elements * HALF_ITEMSIZE) if self.compression == "fp16" else 0.0
        if self.merge == "none" or len(trainable(facts)) == 1:
            return compressed
        if self.merge == "threshold":
            return compressed + self.fusion_threshold
        return compressed + float(elements * self._itemsize(facts.itemsize))

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        yield ScaleLoss(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            yield from forward(facts, micro)
            # As with backward_passes_per_step; and a single rank registers no hooks.
            if micro < last or facts.world_size == 1:
                yield from backward(facts, micro)
        if facts.world_size > 1:
            yield from self._reduced_backward(facts, step, last)
        yield Update()

    def _reduced_backward(self, facts: Facts, step: StepContext, micro: int) -> Ops:
        messages = self.messages(facts, step)
        reducer = Reducer(facts, messages, count(), after=facts.world_size)
        yield from reducer.backward(micro, self.overlap)
        for name in facts.unused:  # enqueued by step()
            yield from reducer.mark_ready(name)
        yield from reducer.finish()

    def messages(self, facts: Facts, step: StepContext) -> list[Message]:
        """Return the messages of the current step, in order."""
        names = [*facts.ready_order, *facts.unused]
        times = step.ready_times(step.num_micro_steps - 1)
        end = times[-1]
        ready = list(times) if self.overlap else [end] * len(times)
        ready += [end] * len(facts.unused)
        dtype = "float16" if self.compression == "fp16" else None
        charged = copies_charged(self.charge_copies, facts)
        messages = []
        for members in self._grouped(facts, ready, [facts.sizes[name] for name in names]):
            last = ready[members[-1]]
            copied = charged and (len(members) > 1 or dtype is not None)
            of_group = [names[number] for number in members]
            messages.append(
                Message(
                    facts.bucket(of_group, dtype, is_compressed=dtype is not None, room=0.0),
                    wait=next_cycle(last, self.cycle_time) - last,
                    copied=copied,
                    copied_back=copied,
                )
            )
        return messages

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
        """Return MG-WFBP's cost of a message [s], and of a byte [s/byte]."""
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
