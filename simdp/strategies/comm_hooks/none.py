"""No hook: gradients travel as they are."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from simdp.strategies.base import Bucket, Rank
from simdp.strategies.comm_hooks.base import CommHook, Sent, plain


class NoHook(CommHook):
    """Divide by the number of ranks, then all_reduce (torch: allreduce_hook)."""

    kind: Literal["none"] = "none"

    @property
    def dtype(self) -> str | None:
        return None

    def send(
        self, rank: Rank, bucket: Bucket, label: str, wait: float, divisor: float
    ) -> Generator[Any, None, Sent]:
        return (yield from plain(rank, bucket, label, wait))
