"""DDP communication hooks: base class and table of kinds.

The names are those of torch.distributed.algorithms.ddp_comm_hooks, shortened. This table is the one
place of registration.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from simdp.family import Family
from simdp.spec import Spec, one_of
from simdp.steps.facts import Facts, Ops, StepContext
from simdp.steps.ops import AllReduce, Hold, Op, Rounding
from simdp.steps.partition import Bucket
from simdp.steps.passes import Tags
from simdp.workload import Workload
from simdp.workload.precision import numpy_dtype


class SentBucket(NamedTuple):
    """A bucket on its way.

    Attributes
    ----------
    tags : tuple of int
        Collectives that must be done before its averages are there.
    finish : tuple of Op
        What is left to do then, on the compute stream.
    """

    tags: tuple[int, ...] = ()
    finish: tuple[Op, ...] = ()


Sending = Generator[Op, None, SentBucket]


class CommHook(Spec):
    """What becomes of a bucket from when its last gradient is in it to when all have the average.

    As in torch, a hook divides too: with one, gradients come into their bucket as `divided` says.
    """

    kind: str

    def settled(self, base: Path) -> Self:
        """The same hook with its file read, if it has one.

        Raises
        ------
        ScenarioError
            If it cannot be read, or does not say what it should.
        """
        return self

    @property
    def dtype(self) -> str | None:
        """The dtype that gradients are rounded to in their bucket; None leaves them their own."""
        return None

    @abstractmethod
    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        """Send a bucket.

        Parameters
        ----------
        facts : Facts
            Of the run.
        bucket : Bucket
            Complete.
        label : str
            Its name in the trace.
        wait : float
            How long it is held back [s].
        divisor : float
            What makes a mean of the sum over the ranks.
        tags : iterator of int
            Numbers for its collectives.
        """

    def divided(self, divisor: float) -> float:
        """What gradients are divided by as they come into the bucket."""
        return divisor

    @property
    def first_alike(self) -> int:
        """The step from which on it does the same in every step."""
        return 0

    def after_warmup(self) -> Self:
        """The same hook from the first step on, where it begins after some."""
        return self

    def of(self, step: StepContext) -> CommHook:
        """The hook that sends in a step: itself, or another one in its place."""
        return self

    def setup(self, facts: Facts) -> Ops:
        """Take the memory of what is kept from step to step."""
        yield from ()

    def problem_with(self, workload: Workload) -> str | None:
        """Say why this hook cannot serve the workload, led by the key of its kind; or None."""
        return None


def plain(facts: Facts, bucket: Bucket, label: str, wait: float, tags: Tags) -> Sending:
    """Send a bucket as it is: one all_reduce, whose sum is the average."""
    tag = next(tags)
    yield AllReduce(tag, label, bucket.nbytes, bucket, wait, group=facts.quorum.group)
    return SentBucket((tag,))


def rounded(facts: Facts, bucket: Bucket, label: str, wait: float, tags: Tags) -> Sending:
    """Send a bucket of another dtype, which torch makes beside that of the gradients' own.

    What its kernels take is charged where those between layers are.
    """
    work = facts.workload.compute.runs_eagerly
    tag, nbytes = next(tags), float(bucket.num_elements * numpy_dtype(bucket.dtype).itemsize)
    yield Hold("temporary", nbytes)
    if work:
        yield Rounding(bucket, label)
    yield AllReduce(tag, label, nbytes, bucket, wait, group=facts.quorum.group)
    back = (Rounding(bucket, label, True),) * work
    return SentBucket((tag,), (*back, Hold("temporary", -nbytes)))


def spoilt_by_a_loss_scale(kind: str, workload: Workload) -> str | None:
    """Say that what a hook keeps from step to step would keep an inf for ever; or None."""
    if workload.precision.scaler() is None:
        return None
    return (
        f"comm_hook: {kind} would keep what an inf leaves of a gradient for all later steps, and a "
        f"loss scale (precision: {workload.precision.kind}) provokes such steps; use precision: "
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

    Measures what DDP takes without communication. Gradients are not averaged, nor divided.
    """

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
