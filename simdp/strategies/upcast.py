"""MixedPrecision: DDP casts weights down for every forward, and averages up behind every bucket."""

from __future__ import annotations

from simdp.spec import Spec
from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts, Ops
from simdp.steps.ops import AllReduce, Copy, Hold
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks import CommHook, Sent
from simdp.strategies.comm_hooks.base import Sending
from simdp.strategies.low import Low
from simdp.workload.precision.rounding import numpy_dtype


class MixedPrecision(Spec):
    """torch's ``_MixedPrecision`` of DDP: float32 weights, and what is made of them in fewer bits.

    Weights are copied into 16 bits before forward, one behind the other; torch does so on a stream
    of its own. The copies of a bucket are given back when its gradients have been averaged, which
    then are made float32 for the optimizer.

    Attributes
    ----------
    param_dtype : {"bfloat16", "float16", "float32"} or None
        In which layers compute, as under ``precision: mixed``. None leaves them float32.
    reduce_dtype : {"bfloat16", "float16", "float32"} or None
        In which gradients travel, and are divided after the sum. None is ``param_dtype``.
    buffer_dtype : {"bfloat16", "float16", "float32"} or None
        Of buffers, such as running means, which are rounded whenever they change; counters stay
        whole numbers. None is float32.

    References
    ----------
    torch, nn/parallel/distributed.py (_MixedPrecision) and
    distributed/algorithms/ddp_comm_hooks/mixed_precision_hooks.py.
    """

    param_dtype: Low | None = None
    reduce_dtype: Low | None = None
    buffer_dtype: Low | None = None

    @property
    def is_low(self) -> bool:
        """Whether layers compute in another dtype than the weights'."""
        return self.param_dtype not in (None, "float32")


class Upcast(CommHook):
    """Sum a bucket in ``reduce_dtype``; then make its averages float32, and free its copies.

    Attributes
    ----------
    reduce_dtype : str or None
        In which gradients travel.
    casts : bool
        Whether there are copies of weights.
    is_first : bool
        Whether the gradients are still of the copies' dtype.
    """

    kind: str = "upcast"
    reduce_dtype: str | None = None
    casts: bool = False
    is_first: bool = True

    @property
    def dtype(self) -> str | None:
        return self.reduce_dtype

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        tag, nbytes = next(tags), float(bucket.num_elements * numpy_dtype(bucket.dtype).itemsize)
        beside = nbytes if self.reduce_dtype is not None else 0.0
        if beside:
            yield Copy(f"{label} to {bucket.dtype}", (bucket.nbytes + nbytes) / 2)
            yield Hold("temporary", beside)
        yield AllReduce(tag, label, nbytes, bucket, wait, group=facts.quorum.group)
        back = [Hold("temporary", -beside)] if beside else []
        return Sent((tag,), (*self._upcast(facts, bucket, label), *back))

    def _upcast(self, facts: Facts, bucket: Bucket, label: str) -> Ops:
        if not self.casts:
            return
        learned = [name for name in bucket.names if name not in set(facts.unused)]
        narrow, wide = facts.itemsize, facts.workload.itemsize
        elements = facts.num_elements(learned)
        if self.is_first:
            yield Copy(f"{label} to float32", elements * (narrow + wide) / 2)
            yield Hold("gradients", float(elements * (wide - narrow)))
        yield Hold("parameters", -float(bucket.num_elements * narrow))


def cast_down(facts: Facts, is_kept: bool) -> Ops:
    """Copy all weights into the layers' dtype; ``is_kept`` if the room is there from before."""
    elements = facts.num_elements(list(facts.sizes))
    narrow, wide = facts.itemsize, facts.workload.itemsize
    if not is_kept:
        yield Hold("parameters", float(elements * narrow))
    yield Copy("parameters to 16 bit", elements * (narrow + wide) / 2)


def forget_wide(facts: Facts) -> Ops:
    """Give back what float32 gradients take beside what those of the layers' dtype do."""
    elements = facts.num_elements(facts.ready_order)
    yield Hold("gradients", -float(elements * (facts.workload.itemsize - facts.itemsize)))
