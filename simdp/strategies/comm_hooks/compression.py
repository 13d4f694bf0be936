"""Hooks that compress gradients: half precision, quantization, top-k, PowerSGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt, prod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from simdp.spec import Bool, Float, Int, one_of, problem
from simdp.steps.facts import Facts, Ops, StepContext, Tags, num_trainable, trainable
from simdp.steps.ops import (
    AddSelected,
    AllGather,
    AllReduce,
    Dequantize,
    EncodeBucket,
    Hold,
    Join,
    Observe,
    OrthogonalizeBucket,
    Quantize,
    Select,
    SplitBucket,
    Unpack,
    Wait,
)
from simdp.steps.partition import Bucket, Factor, Factoring, Selection
from simdp.strategies.comm_hooks import (
    COMM_HOOKS,
    CommHook,
    NoHook,
    Sending,
    SentBucket,
    narrow_nbytes,
    plain,
    refuse_loss_scale,
    rounded,
)
from simdp.workload import Workload
from simdp.workload.layers.base import Parameter
from simdp.workload.precision import numpy_dtype

WRAPPED = ("batched_power_sgd", "none", "noop", "power_sgd")


def _can_be_wrapped(value: CommHook) -> CommHook:
    if value.kind in WRAPPED:
        return value
    raise problem(
        f"{value.kind} sends the same bytes in any dtype; wrap one of {', '.join(WRAPPED)}."
    )


class Rounded(CommHook):
    """Base of the hooks that round to 16 bits, divide, and all_reduce half the bytes."""

    low: ClassVar[str]

    @property
    def dtype(self) -> str | None:
        return self.low

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return rounded(facts, bucket, label, plain(facts, bucket, label, wait, tags))


class Bf16(Rounded):
    """Round to bfloat16, divide, and all_reduce half the bytes (torch: bf16_compress_hook)."""

    low: ClassVar[str] = "bfloat16"
    kind: Literal["bf16"] = "bf16"


class Fp16(Rounded):
    """Round to float16, divide, and all_reduce half the bytes (torch: fp16_compress_hook)."""

    low: ClassVar[str] = "float16"
    kind: Literal["fp16"] = "fp16"


class Wrapper(Rounded):
    """Base of the wrappers."""

    hook: Annotated[CommHook, one_of("comm_hook", COMM_HOOKS), AfterValidator(_can_be_wrapped)] = (
        NoHook()
    )
    """Works on the bucket of 16 bits: `power_sgd`, `batched_power_sgd`, `none` or `noop`."""

    def problem_with(self, workload: Workload) -> str | None:
        return self.hook.problem_with(workload)

    def of(self, step: StepContext) -> CommHook:
        return self.model_copy(update={"hook": self.hook.of(step)})

    def setup(self, facts: Facts) -> Ops:
        """Allocate the state of the wrapped hook, in 16 bits."""
        share = numpy_dtype(self.low).itemsize / facts.itemsize
        for op in self.hook.setup(facts):
            yield replace(op, nbytes=op.nbytes * share) if isinstance(op, Hold) else op

    def divided(self, divisor: float) -> float:
        return self.hook.divided(divisor)

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        narrow = bucket._replace(nbytes=narrow_nbytes(bucket))
        inner = self.hook.send(facts, narrow, label, wait, divisor, tags)
        return rounded(facts, bucket, label, inner)


class Fp16Wrapper(Wrapper):
    """Another hook in float16 (torch: fp16_compress_wrapper)."""

    low: ClassVar[str] = "float16"
    kind: Literal["fp16_wrapper"] = "fp16_wrapper"


class Bf16Wrapper(Wrapper):
    """Another hook in bfloat16 (torch: bf16_compress_wrapper)."""

    low: ClassVar[str] = "bfloat16"
    kind: Literal["bf16_wrapper"] = "bf16_wrapper"


SCALE_NBYTES = 8
"""A scale and a zero point are sent as two float32."""


class Quantization(CommHook):
    """Base of quantization: all_gathers of the scales and of the quantized bytes."""

    row: ClassVar[int | None] = None

    def divided(self, divisor: float) -> float:
        return 1.0

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        code, n = EncodeBucket(bucket, self.row, label), facts.world_size
        scales, sent = next(tags), next(tags)
        rounding, nbytes = float(SCALE_NBYTES * code.num_rows * n), float(code.num_bytes * n)
        yield Hold("temporary", nbytes)
        yield Observe(code)
        yield AllGather(scales, f"{label} scales", rounding, wait=wait)
        # A callback of the first all_gather; both are on one stream.
        yield Quantize(code)
        yield AllGather(sent, label, nbytes)
        return SentBucket((scales, sent), (Dequantize(code, divisor), Hold("temporary", -nbytes)))


class QuantizationPerChannel(Quantization):
    """One scale for each 512 numbers of a bucket (torch: quantization_perchannel_hook).

    The last row is padded with zeros; where it is already full, torch adds 512 zeros.
    """

    kind: Literal["quantization_perchannel"] = "quantization_perchannel"
    row: ClassVar[int | None] = 512


class QuantizationPerTensor(Quantization):
    """One scale for a bucket (torch: quantization_pertensor_hook).

    The least and the greatest number of a rank's bucket, and 0, map to 0 to 255; every rank adds
    the received numbers in rank order, in float32.
    """

    kind: Literal["quantization_pertensor"] = "quantization_pertensor"


PLACE_ITEMSIZE, LONG_PLACE_ITEMSIZE = 4, 8
"""An entry's index in its bucket is an int32, or an int64 in larger buckets."""


class TopK(CommHook):
    """Send the entries of largest magnitude with their indices; all_gather them, and add.

    A rank sends ``max(1, round(ratio elements))`` entries of each bucket (ties: the first). Every
    rank adds received entries in rank order. Not in torch.

    References
    ----------
    Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Stich,
    Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
    """

    kind: Literal["top_k"] = "top_k"
    ratio: Annotated[Float, Field(gt=0, le=1)] = 0.01
    """Fraction of a bucket's entries that is sent; 0 < ratio <= 1."""
    error_feedback: Bool = True
    """Add entries that a rank has not sent to its gradients of the next step."""

    def problem_with(self, workload: Workload) -> str | None:
        return refuse_loss_scale(self.kind, workload) if self.error_feedback else None

    def setup(self, facts: Facts) -> Ops:
        if self.error_feedback:
            yield Hold("buckets", float(num_trainable(facts) * facts.itemsize))

    def divided(self, divisor: float) -> float:
        return 1.0

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        short = bucket.num_elements <= np.iinfo(np.int32).max
        place = PLACE_ITEMSIZE if short else LONG_PLACE_ITEMSIZE
        count = max(1, round(self.ratio * bucket.num_elements))
        entry = facts.itemsize + place
        chosen = Selection(bucket, count, entry, divisor, self.error_feedback, label)
        tag, nbytes = next(tags), float(count * entry) * facts.world_size
        yield Hold("temporary", nbytes)
        yield Select(chosen)
        yield AllGather(tag, label, nbytes, selection=chosen, wait=wait)
        return SentBucket((tag,), (AddSelected(chosen), Hold("temporary", -nbytes)))


class _LateHook(CommHook):
    """Base of hooks that send factors of at most ``rank`` columns from ``start_step`` on."""

    rank: Annotated[Int, Field(ge=1)] = 1
    start_step: Annotated[Int, Field(ge=0)] = 1000

    def after_warmup(self) -> Self:
        return self.model_copy(update={"start_step": 0})

    @property
    def first_alike(self) -> int:
        return self.start_step

    def of(self, step: StepContext) -> CommHook:
        return NoHook() if step.before(self.start_step) else self

    def divided(self, divisor: float) -> float:
        return 1.0


class PowerSGD(_LateHook):
    """Send two thin matrices P and Q in place of a gradient P Q^T (torch: powerSGD_hook).

    A tensor of shape `(n, ...)` is a matrix M of n rows. Three all_reduces follow each other:
    uncompressed tensors; all P = M Q, then orthonormalised; all Q = M^T P. Empty ones are left out.
    Backward resumes when a bucket's average is complete, since torch's hook ends with a wait of the
    host for its device: from ``start_step`` on nothing overlaps backward. State belongs to tensors,
    so that it survives when buckets are rebuilt; torch keeps it by bucket, and therefore requires
    ``start_step`` >= 2.

    Attributes
    ----------
    rank : int
        Maximum columns of P and Q: r (torch: matrix_approximation_rank).
    start_step : int
        Uncompressed steps before the first compressed one (torch: start_powerSGD_iter).

    References
    ----------
    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for
    distributed optimization", NeurIPS 2019.
    """

    kind: Literal["power_sgd"] = "power_sgd"
    min_compression_rate: Annotated[Float, Field(gt=0)] = 2.0
    """M, n by m, is compressed if ``(n + m) r min_compression_rate < n m``."""
    error_feedback: Bool = True
    """Add the previous step's compression error to a rank's gradient (torch:
    use_error_feedback)."""
    warm_start: Bool = True
    """Begin with the previous step's Q. False draws Q anew each time."""
    orthogonalization_epsilon: Annotated[Float, Field(ge=0)] = 0.0
    """Added to a column's norm before division by it. P and Q of at most 2 columns, or of 16 bits,
    are orthonormalised column by column (Gram-Schmidt), others by a QR decomposition, which ignores
    epsilon."""
    batch_tensors_with_same_shape: Bool = False
    """One kernel for all matrices of a shape, which are copied together for it and back. Their
    first Q is drawn at once, too."""
    random_seed: Annotated[Int, Field(ge=0, lt=2**32)] = 0
    """Seed of the first Q, drawn as torch.randn does (torch: random_seed)."""

    def problem_with(self, workload: Workload) -> str | None:
        if self.error_feedback or self.warm_start:
            return refuse_loss_scale(self.kind, workload)
        return None

    def factors(self, tensors: Sequence[Parameter]) -> list[Factor]:
        """Return the factors of each tensor worth compressing, grouped by shape."""
        by_shape: dict[tuple[int, int], list[Factor]] = {}
        for tensor in tensors:
            rows = tensor.shape[0] if tensor.shape else 1
            columns = prod(tensor.shape[1:])
            rank = min(rows, columns, self.rank)
            if (rows + columns) * rank * self.min_compression_rate < rows * columns:
                factor = Factor(tensor.name, rows, columns, rank)
                by_shape.setdefault((rows, columns), []).append(factor)
        return [factor for factors in by_shape.values() for factor in factors]

    def setup(self, facts: Facts) -> Ops:
        """Allocate P, Q and the errors, even if a later step is the first to use them."""
        factors = self.factors(trainable(facts))
        elements = sum((f.rows + f.columns) * f.rank for f in factors)
        if self.error_feedback:
            elements += num_trainable(facts)
        yield Hold("buckets", float(elements * facts.itemsize))

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return sent_as_factors(self._factoring(facts, bucket, label), wait, divisor, tags)

    def _factoring(self, facts: Facts, bucket: Bucket, label: str) -> Factoring:
        by_name = {parameter.name: parameter for parameter in facts.parameters}
        factors = self.factors([by_name[name] for name in bucket.names])
        names = tuple(factor.name for factor in factors)
        rest = tuple(name for name in bucket.names if name not in set(names))
        return Factoring(
            bucket=bucket,
            rest=part_of(bucket, "rest", rest, facts.num_elements(rest)),
            p=part_of(bucket, "P", names, sum(f.rows * f.rank for f in factors)),
            q=part_of(bucket, "Q", names, sum(f.columns * f.rank for f in factors)),
            factors=tuple(factors),
            error_feedback=self.error_feedback,
            warm_start=self.warm_start,
            epsilon=self.orthogonalization_epsilon,
            batched=self.batch_tensors_with_same_shape,
            label=label,
            random_seed=self.random_seed,
        )


def part_of(bucket: Bucket, of: str, names: tuple[str, ...], num_elements: int) -> Bucket:
    """Return the bucket that is sent for a part of a bucket."""
    nbytes = float(num_elements * numpy_dtype(bucket.dtype).itemsize)
    return Bucket(names, num_elements, bucket.dtype, nbytes, of=of)


def sent_as_factors(taken: Factoring, wait: float, divisor: float, tags: Tags) -> Sending:
    """Send the factors of a bucket; backward resumes when the average is complete."""
    bucket, label, sent = taken.bucket, taken.label, list[int]()
    # The uncompressed part, and a copy of the bucket from which the error follows.
    temporary = taken.rest.nbytes + taken.error_feedback * bucket.nbytes
    yield Hold("temporary", temporary)
    yield SplitBucket(taken)
    before: Unpack | OrthogonalizeBucket | None = None
    if taken.rest.nbytes:
        sent.append(next(tags))
        yield AllReduce(sent[-1], f"{label} as it is", taken.rest.nbytes, taken.rest, wait)
        before = Unpack(taken)
    if taken.p.nbytes:
        sent.append(next(tags))
        yield AllReduce(sent[-1], f"{label} P", taken.p.nbytes, taken.p, wait, before)
        sent.append(next(tags))
        yield AllReduce(
            sent[-1], f"{label} Q", taken.q.nbytes, taken.q, wait, OrthogonalizeBucket(taken)
        )
    # torch's hook runs in backward's thread, and ends with a synchronize of the device.
    yield Wait(tuple(sent))
    yield Join(taken, divisor)
    yield Hold("temporary", -temporary)
    return SentBucket()


class BatchedPowerSGD(_LateHook):
    """Send two thin matrices P and Q in place of a bucket (torch: batched_powerSGD_hook).

    The bucket is padded with zeros to a square matrix regardless of its tensors: faster than
    `PowerSGD`, and less exact. Two all_reduces follow each other, P's and Q's. State belongs to
    buckets: those rebuilt after ``start_step`` start over.

    Attributes
    ----------
    rank : int
        Columns of P and Q (torch: matrix_approximation_rank).
    start_step
        As of `PowerSGD`.
    """

    kind: Literal["batched_power_sgd"] = "batched_power_sgd"
    error_feedback: Bool = True
    """As of `PowerSGD`."""
    warm_start: Bool = True
    """As of `PowerSGD`."""
    random_seed: Annotated[Int, Field(ge=0, lt=2**32)] = 0
    """As of `PowerSGD`."""

    def problem_with(self, workload: Workload) -> str | None:
        if self.error_feedback or self.warm_start:
            return refuse_loss_scale(self.kind, workload)
        return None

    def setup(self, facts: Facts) -> Ops:
        """Allocate the errors, and P and Q as of one bucket."""
        total = num_trainable(facts)
        side = side_of(total)
        elements = self.error_feedback * total + 2 * side * min(side, self.rank)
        yield Hold("buckets", float(elements * facts.itemsize))

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        side = side_of(bucket.num_elements)
        rank = min(side, self.rank)
        square = Factor(f"{label} of {bucket.num_elements}", side, side, rank)
        taken = Factoring(
            bucket=bucket,
            rest=part_of(bucket, "rest", (), 0),
            p=part_of(bucket, "P", (square.name,), side * rank),
            q=part_of(bucket, "Q", (square.name,), side * rank),
            factors=(square,),
            error_feedback=self.error_feedback,
            warm_start=self.warm_start,
            epsilon=0.0,
            batched=False,
            label=label,
            random_seed=self.random_seed,
            is_square=True,
        )
        return sent_as_factors(taken, wait, divisor, tags)


def side_of(num_elements: int) -> int:
    """Return the side of the smallest square matrix with room for a bucket."""
    return isqrt(num_elements - 1) + 1
