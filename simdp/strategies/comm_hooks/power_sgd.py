"""PowerSGD: a gradient seen as a matrix travels as the product of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.steps.bucket import Bucket, Factor, Factoring
from simdp.steps.facts import Facts, Ops, Step, num_trainable, trainable
from simdp.steps.ops import AllReduce, Hold, Join, Split, Turn, Unpack, Wait
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent, spoilt_by_a_loss_scale
from simdp.strategies.comm_hooks.none import NoHook
from simdp.workload import Workload
from simdp.workload.layers import Parameter
from simdp.workload.precision.rounding import numpy_dtype


class PowerSGD(CommHook):
    """Send two thin matrices P and Q in place of a gradient P Q^T (torch: powerSGD_hook).

    A tensor of shape `(n, ...)` is a matrix M of n rows. Three all_reduces follow each other:
    tensors that are not worth it; all P = M Q, then made orthonormal; all Q = M^T P. Those of which
    a bucket has none are left out. Backward goes on when a bucket's average is there, since torch's
    hook ends in a wait of the host for its device: from ``start_step`` on nothing is hidden behind
    backward. What is kept belongs to tensors, so that it survives when buckets are rebuilt; torch
    keeps it by bucket, and therefore wants ``start_step`` >= 2.

    Attributes
    ----------
    rank : int
        Columns of P and Q at most: r (torch: matrix_approximation_rank).
    start_step : int
        Steps before the first one that compresses; they all_reduce (torch: start_powerSGD_iter).
    min_compression_rate : float
        M, n by m, is compressed if ``(n + m) r min_compression_rate < n m``.
    error_feedback : bool
        Add to a rank's gradient what the step before has lost of it (torch: use_error_feedback).
    warm_start : bool
        Begin with the Q of the step before. False draws Q anew each time.
    orthogonalization_epsilon : float
        Added to a column's norm before it is divided by it. P and Q of at most 2 columns, or of 16
        bits, are made orthonormal column by column (Gram-Schmidt), others by a QR decomposition,
        which heeds no epsilon.
    batch_tensors_with_same_shape : bool
        One kernel for all matrices of a shape, which are copied together for it and back. Their
        first Q is drawn at once, too.
    random_seed : int
        The first Q is what torch.randn draws, seeded from this number (torch: random_seed).

    References
    ----------
    Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for
    distributed optimization", NeurIPS 2019.
    """

    kind: Literal["power_sgd"] = "power_sgd"
    rank: Annotated[Int, Field(ge=1)] = 1
    start_step: Annotated[Int, Field(ge=0)] = 1000
    min_compression_rate: Annotated[Float, Field(gt=0)] = 2.0
    error_feedback: Bool = True
    warm_start: Bool = True
    orthogonalization_epsilon: Annotated[Float, Field(ge=0)] = 0.0
    batch_tensors_with_same_shape: Bool = False
    random_seed: Annotated[Int, Field(ge=0, lt=2**32)] = 0

    def problem_with(self, workload: Workload) -> str | None:
        if self.error_feedback or self.warm_start:
            return spoilt_by_a_loss_scale(self.kind, workload)
        return None

    def factors(self, tensors: Sequence[Parameter]) -> list[Factor]:
        """How each tensor that is worth it is taken apart; those of one shape stand together."""
        found: dict[tuple[int, int], list[Factor]] = {}
        for tensor in tensors:
            rows = tensor.shape[0] if tensor.shape else 1
            columns = prod(tensor.shape[1:])
            rank = min(rows, columns, self.rank)
            if (rows + columns) * rank * self.min_compression_rate < rows * columns:
                factor = Factor(tensor.name, rows, columns, rank)
                found.setdefault((rows, columns), []).append(factor)
        return [factor for factors in found.values() for factor in factors]

    def setup(self, facts: Facts) -> Ops:
        """P, Q and the errors are there from the start, though a later step may be the first."""
        factors = self.factors(trainable(facts))
        elements = sum((f.rows + f.columns) * f.rank for f in factors)
        if self.error_feedback:
            elements += num_trainable(facts)
        yield Hold("buckets", float(elements * facts.itemsize))

    def after_warmup(self) -> Self:
        return self.model_copy(update={"start_step": 0})

    def of(self, step: Step) -> CommHook:
        return NoHook() if step.before(self.start_step) else self

    def divided(self, divisor: float) -> float:
        return 1.0

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
    """What travels of a bucket in its place."""
    nbytes = float(num_elements * numpy_dtype(bucket.dtype).itemsize)
    return Bucket(names, num_elements, bucket.dtype, nbytes, of=of)


def sent_as_factors(taken: Factoring, wait: float, divisor: float, tags: Tags) -> Sending:
    """Send what a bucket has been taken apart into; backward goes on when the average is there.

    Parameters
    ----------
    taken : Factoring
        The bucket.
    wait, divisor, tags
        As of `CommHook.send`.
    """
    bucket, label, sent = taken.bucket, taken.label, list[int]()
    # A copy of what is to be sent, from which the error will follow; and what goes as it is.
    temporary = taken.rest.nbytes + taken.error_feedback * bucket.nbytes
    yield Hold("temporary", temporary)
    yield Split(taken)
    before: Unpack | Turn | None = None
    if taken.rest.nbytes:
        sent.append(next(tags))
        yield AllReduce(sent[-1], f"{label} as it is", taken.rest.nbytes, taken.rest, wait)
        before = Unpack(taken)
    if taken.p.nbytes:
        sent.append(next(tags))
        yield AllReduce(sent[-1], f"{label} P", taken.p.nbytes, taken.p, wait, before)
        sent.append(next(tags))
        yield AllReduce(sent[-1], f"{label} Q", taken.q.nbytes, taken.q, wait, Turn(taken))
    # torch's hook runs in backward's thread, and ends in a synchronize of the device.
    yield Wait(tuple(sent))
    yield Join(taken, divisor)
    yield Hold("temporary", -temporary)
    return Sent()
