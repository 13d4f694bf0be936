"""bf16: gradients travel in bfloat16."""

from __future__ import annotations

from typing import Literal

from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, rounded


class Bf16(CommHook):
    """Round to bfloat16, divide, and all_reduce half the bytes (torch: bf16_compress_hook)."""

    kind: Literal["bf16"] = "bf16"

    @property
    def dtype(self) -> str | None:
        return "bfloat16"

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return rounded(facts, bucket, label, wait, tags)
