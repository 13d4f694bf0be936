"""fp16: gradients travel in float16."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from simdp.strategies.base import Bucket, Rank
from simdp.strategies.comm_hooks.base import CommHook, Sent, rounded


class Fp16(CommHook):
    """Round to float16, divide, and all_reduce half the bytes (torch: fp16_compress_hook)."""

    kind: Literal["fp16"] = "fp16"

    @property
    def dtype(self) -> str | None:
        return "float16"

    def send(
        self, rank: Rank, bucket: Bucket, label: str, wait: float, divisor: float
    ) -> Generator[Any, None, Sent]:
        return (yield from rounded(rank, bucket, label, wait))
