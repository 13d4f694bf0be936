"""TopK: each rank sends the largest entries of its gradients, and keeps the others for later."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simdp.spec import Bool, Float
from simdp.steps.bucket import Bucket, Selection
from simdp.steps.facts import Facts, Ops, num_trainable
from simdp.steps.ops import AddSelected, AllGather, Hold, Select
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent, spoilt_by_a_loss_scale
from simdp.workload import Workload

PLACE_ITEMSIZE, LONG_PLACE_ITEMSIZE = 4, 8
"""An entry's place in its bucket is an int32, or an int64 where that does not reach."""


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

    def problem_with(self, workload: Workload) -> str | None:
        return spoilt_by_a_loss_scale(self.kind, workload) if self.error_feedback else None

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
        return Sent((tag,), (AddSelected(chosen), Hold("temporary", -nbytes)))
