"""CommHook: sends a complete bucket of gradients, and makes an average of what comes back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from simdp.spec import Spec
from simdp.strategies.base import Bucket, Pending, Rank, Script
from simdp.workload import Workload


class Sent(NamedTuple):
    """A bucket on its way.

    Attributes
    ----------
    pending : tuple of Pending
        What must be done before its averages are there.
    finish : callable or None
        Runs what is left to do then, on the compute stream; None where nothing is.
    """

    pending: tuple[Pending, ...]
    finish: Callable[[], Script] | None = None


class CommHook(Spec):
    """What becomes of a bucket from when its last gradient is in it to when all have the average.

    As in torch, a hook divides too: with one, gradients come into their bucket as `divided` says.
    """

    kind: str

    @property
    @abstractmethod
    def dtype(self) -> str | None:
        """The dtype that gradients are rounded to in their bucket; None leaves them their own."""

    @abstractmethod
    def send(
        self, rank: Rank, bucket: Bucket, label: str, wait: float, divisor: float
    ) -> Generator[Any, None, Sent]:
        """Send a bucket.

        Parameters
        ----------
        rank : Rank
            Whose bucket.
        bucket : Bucket
            Complete.
        label : str
            Its name in the trace.
        wait : float
            How long it is held back [s].
        divisor : float
            What makes a mean of the sum over the ranks.
        """

    def divided(self, rank: Rank, divisor: float) -> float:
        """What gradients are divided by as they come into the bucket."""
        return divisor

    def setup(self, rank: Rank) -> Script:
        """Take the memory of what is kept from step to step."""
        yield from ()

    def uses(self) -> list[tuple[str, int]]:
        """Collectives that it calls, as `simdp.strategies.base.Strategy.uses` names them."""
        return [("all_reduce", 0)]

    def keeps_errors(self) -> bool:
        """Whether a copy of all gradients is kept from step to step, of what they have lost."""
        return False

    def problem_with(self, workload: Workload) -> str | None:
        """Say why this hook cannot serve the workload, led by the key of its kind; or None."""
        return None


def plain(rank: Rank, bucket: Bucket, label: str, wait: float) -> Generator[Any, None, Sent]:
    """Send a bucket as it is: one all_reduce, whose sum is the average."""
    pending = yield from rank.all_reduce(bucket, label, wait)
    return Sent((pending,))


def rounded(rank: Rank, bucket: Bucket, label: str, wait: float) -> Generator[Any, None, Sent]:
    """Send a bucket of another dtype, which torch makes beside that of the gradients' own."""
    yield from rank.hold("temporary", bucket.nbytes)
    pending = yield from rank.all_reduce(bucket, label, wait)
    return Sent((pending,), partial(rank.hold, "temporary", -bucket.nbytes))


def spoilt_by_a_loss_scale(kind: str, workload: Workload) -> str | None:
    """Say that what a hook keeps from step to step would keep an inf for ever; or None."""
    if workload.precision.scaler() is None:
        return None
    return (
        f"comm_hook: {kind} would keep what an inf leaves of a gradient for all later steps, and a "
        f"loss scale (precision: {workload.precision.kind}) provokes such steps; use precision: "
        "{kind: amp, dtype: bfloat16}, or comm_hook: bf16."
    )
