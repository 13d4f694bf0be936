"""Wrappers: another hook works on gradients of 16 bits, and its averages are cast back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from simdp.spec import one_of, problem
from simdp.steps.bucket import Bucket
from simdp.steps.coded import Rounding
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.ops import Hold
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks import COMM_HOOKS
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent
from simdp.strategies.comm_hooks.none import NoHook
from simdp.workload import Workload
from simdp.workload.precision.rounding import numpy_dtype

WRAPPED = ("batched_power_sgd", "none", "noop", "power_sgd")


def _can_be_wrapped(value: CommHook) -> CommHook:
    if value.kind in WRAPPED:
        return value
    raise problem(
        f"{value.kind} sends bytes of its own, of whatever dtype; wrap one of {', '.join(WRAPPED)}."
    )


class Wrapper(CommHook):
    """Base of the wrappers.

    Attributes
    ----------
    hook : CommHook
        Works on the bucket of 16 bits: `power_sgd`, `batched_power_sgd`, `none` or `noop`.
    """

    hook: Annotated[CommHook, one_of("comm_hook", COMM_HOOKS), AfterValidator(_can_be_wrapped)] = (
        NoHook()
    )

    def problem_with(self, workload: Workload) -> str | None:
        return self.hook.problem_with(workload)

    def of(self, step: Step) -> CommHook:
        return self.model_copy(update={"hook": self.hook.of(step)})

    def setup(self, facts: Facts) -> Ops:
        """Take the memory of what the wrapped hook keeps, in 16 bits."""
        assert self.dtype is not None, "a wrapper has one"
        share = numpy_dtype(self.dtype).itemsize / facts.itemsize
        for op in self.hook.setup(facts):
            yield op._replace(nbytes=op.nbytes * share) if isinstance(op, Hold) else op

    def divided(self, divisor: float) -> float:
        return self.hook.divided(divisor)

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        work = facts.workload.compute.runs_eagerly
        nbytes = float(bucket.num_elements * numpy_dtype(bucket.dtype).itemsize)
        yield Hold("temporary", nbytes)
        if work:
            yield Rounding(bucket, label)
        narrow = bucket._replace(nbytes=nbytes)
        sent = yield from self.hook.send(facts, narrow, label, wait, divisor, tags)
        back = (Rounding(bucket, label, True),) * work
        return Sent(sent.tags, (*sent.finish, *back, Hold("temporary", -nbytes)))


class Fp16Wrapper(Wrapper):
    """Another hook in float16 (torch: fp16_compress_wrapper)."""

    kind: Literal["fp16_wrapper"] = "fp16_wrapper"

    @property
    def dtype(self) -> str | None:
        return "float16"


class Bf16Wrapper(Wrapper):
    """Another hook in bfloat16 (torch: bf16_compress_wrapper)."""

    kind: Literal["bf16_wrapper"] = "bf16_wrapper"

    @property
    def dtype(self) -> str | None:
        return "bfloat16"
