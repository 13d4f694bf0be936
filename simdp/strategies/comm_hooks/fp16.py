"""fp16: gradients travel in float16."""

from __future__ import annotations

from typing import Literal

from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, rounded


class Fp16(CommHook):
    """Round to float16, divide, and all_reduce half the bytes (torch: fp16_compress_hook)."""

    kind: Literal["fp16"] = "fp16"

    @property
    def dtype(self) -> str | None:
        return "float16"

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return rounded(facts, bucket, label, wait, tags)
