"""DDP communication hooks: base class and table of kinds, the one place of registration.

The names are those of torch.distributed.algorithms.ddp_comm_hooks, shortened.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from simdp.family import Family
from simdp.spec import Spec, one_of
from simdp.steps.facts import Facts, Ops, StepContext, Tags
from simdp.steps.ops import AllReduce, Hold, Op, Rounding
from simdp.steps.partition import Bucket, Group
from simdp.workload import Workload
from simdp.workload.precision import numpy_dtype


class SentBucket(NamedTuple):
    """A bucket in flight."""

    tags: tuple[int, ...] = ()  # collectives to wait for
    finish: tuple[Op, ...] = ()  # operations that follow, on the compute stream


Sending = Generator[Op, None, SentBucket]


class CommHook(Spec):
    """Compresses and sends a bucket, from its last gradient to the average on all ranks.

    As in torch, a hook also divides; gradients are divided by `divided` when copied into the
    bucket.
    """

    kind: str

    departure: ClassVar[str] = "compressed_gradients"
    """Name in an audit of the difference from gradients that are averaged as they are."""

    def settled(self, base: Path) -> Self:
        """Return the same hook with its file read, if it has one.

        Raises
        ------
        ScenarioError
            If it is unreadable or invalid.
        """
        return self

    @property
    def dtype(self) -> str | None:
        """The dtype that gradients are rounded to in their bucket; None keeps their own."""
        return None

    @abstractmethod
    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        """Send a complete bucket, named ``label`` in the trace, after a delay ``wait`` [s].

        ``divisor`` turns the sum over the ranks into a mean; ``tags`` number the collectives.
        """

    def divided(self, divisor: float) -> float:
        """Return the divisor of gradients that are copied into the bucket."""
        return divisor

    @property
    def first_alike(self) -> int:
        """The first step from which on it is the same in every step."""
        return 0

    def after_warmup(self) -> Self:
        """Return the same hook as it works after its first steps."""
        return self

    def of(self, step: StepContext) -> CommHook:
        """Return the hook that sends in a step: this one or a replacement."""
        return self

    def setup(self, facts: Facts) -> Ops:
        """Allocate the memory of state between steps."""
        yield from ()

    def problem_with(self, workload: Workload) -> str | None:
        """Explain why this hook does not support the workload, led by its key; or None."""
        return None


def plain(
    facts: Facts, bucket: Bucket, label: str, wait: float, tags: Tags, group: Group = None
) -> Sending:
    """All_reduce a bucket in its dtype."""
    tag, group = next(tags), group or facts.quorum.group
    yield AllReduce(tag, label, narrow_nbytes(bucket), bucket, wait, group=group)
    return SentBucket((tag,))


def narrow_nbytes(bucket: Bucket) -> float:
    """Return the size of a bucket in its dtype [bytes]."""
    return float(bucket.num_elements * numpy_dtype(bucket.dtype).itemsize)


def rounded(facts: Facts, bucket: Bucket, label: str, sending: Sending) -> Sending:
    """Send a bucket of another dtype, which torch creates next to the gradients' own.

    Its kernels are charged where those between layers are.
    """
    work, nbytes = facts.workload.compute.runs_eagerly, narrow_nbytes(bucket)
    yield Hold("temporary", nbytes)
    if work:
        yield Rounding(bucket, label)
    sent = yield from sending
    back = (Rounding(bucket, label, True),) * work
    return SentBucket(sent.tags, (*sent.finish, *back, Hold("temporary", -nbytes)))


def refuse_loss_scale(kind: str, workload: Workload) -> str | None:
    """Refuse a loss scale with a hook that would keep an inf in its state; or None."""
    if workload.precision.scaler() is None:
        return None
    return (
        f"comm_hook: {kind} would keep the effect of an inf gradient for all later steps, and a "
        f"loss scale (precision: {workload.precision.kind}) causes such steps; use precision: "
        "{kind: amp, dtype: bfloat16}, or comm_hook: bf16."
    )


class NoHook(CommHook):
    """Divide by the number of ranks, then all_reduce (torch: allreduce_hook)."""

    kind: Literal["none"] = "none"

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return plain(facts, bucket, label, wait, tags)


class Noop(CommHook):
    """Send nothing: each rank keeps its own gradients (torch: debugging_hooks.noop_hook).

    Measures DDP without communication. Gradients are not averaged, nor divided.
    """

    departure: ClassVar[str] = "bypassed_ddp"

    kind: Literal["noop"] = "noop"

    def divided(self, divisor: float) -> float:
        return 1.0

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        yield from ()
        return SentBucket()


COMM_HOOKS: Family[CommHook] = Family(
    "comm_hooks",
    CommHook,
    __name__,
    {
        "batched_power_sgd": "compression:BatchedPowerSGD",
        "bf16": "compression:Bf16",
        "bf16_wrapper": "compression:Bf16Wrapper",
        "fp16": "compression:Fp16",
        "fp16_wrapper": "compression:Fp16Wrapper",
        "none": "NoHook",
        "noop": "Noop",
        "power_sgd": "compression:PowerSGD",
        "python": "python:Python",
        "quantization_perchannel": "compression:QuantizationPerChannel",
        "quantization_pertensor": "compression:QuantizationPerTensor",
        "top_k": "compression:TopK",
    },
)
AnyCommHook = Annotated[CommHook, one_of("comm_hook", COMM_HOOKS)]

__all__ = ["COMM_HOOKS", "AnyCommHook", "CommHook", "NoHook", "SentBucket"]
