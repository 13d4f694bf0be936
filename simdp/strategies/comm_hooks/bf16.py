"""bf16: gradients travel in bfloat16."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from simdp.strategies.base import Bucket, Rank
from simdp.strategies.comm_hooks.base import CommHook, Sent, rounded


class Bf16(CommHook):
    """Round to bfloat16, divide, and all_reduce half the bytes (torch: bf16_compress_hook)."""

    kind: Literal["bf16"] = "bf16"

    @property
    def dtype(self) -> str | None:
        return "bfloat16"

    def send(
        self, rank: Rank, bucket: Bucket, label: str, wait: float, divisor: float
    ) -> Generator[Any, None, Sent]:
        return (yield from rounded(rank, bucket, label, wait))
