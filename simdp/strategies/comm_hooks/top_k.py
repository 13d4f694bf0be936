"""TopK: each rank sends the largest entries of its gradients, and keeps the others for later."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from simdp.spec import Bool, Float
from simdp.strategies.base import Bucket, Rank, Script
from simdp.strategies.comm_hooks.base import CommHook, Sent, spoilt_by_a_loss_scale
from simdp.workload import Workload


class TopK(CommHook):
    """Send the entries of largest magnitude with their places; all_gather them, and add.

    Of each bucket a rank sends ``max(1, round(ratio elements))`` entries, of equal magnitudes those
    that come first. Every rank adds what it gets in the order of the ranks. Not in torch.

    Attributes
    ----------
    ratio : float
        Part of a bucket's entries that is sent; 0 < ratio <= 1.
    error_feedback : bool
        Add what a rank has not sent to its gradients of the next step.

    References
    ----------
    Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; Stich,
    Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
    """

    kind: Literal["top_k"] = "top_k"
    ratio: Annotated[Float, Field(gt=0, le=1)] = 0.01
    error_feedback: Bool = True

    @property
    def dtype(self) -> str | None:
        return None

    def uses(self) -> list[tuple[str, int]]:
        return [("all_gather", 0)]

    def keeps_errors(self) -> bool:
        return self.error_feedback

    def problem_with(self, workload: Workload) -> str | None:
        return spoilt_by_a_loss_scale(self.kind, workload) if self.error_feedback else None

    def setup(self, rank: Rank) -> Script:
        elements = sum(tensor.num_elements for tensor in rank.parameters)
        if self.error_feedback:
            yield from rank.hold("buckets", float(elements * rank.itemsize))

    def divided(self, rank: Rank, divisor: float) -> float:
        return 1.0

    def send(
        self, rank: Rank, bucket: Bucket, label: str, wait: float, divisor: float
    ) -> Generator[Any, None, Sent]:
        chosen = yield from rank.select(bucket, self.ratio, divisor, self.error_feedback, label)
        pending = yield from rank.all_gather_selected(chosen, label, wait)
        return Sent((pending,), partial(rank.add_selected, chosen))
