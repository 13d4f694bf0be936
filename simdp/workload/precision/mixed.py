"""Mixed precision with master weights (Micikevicius et al., arXiv 1710.03740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simdp.workload.precision.base import Policy, SixteenBit


class Mixed(SixteenBit):
    """16-bit weights, gradients and layers; the optimizer keeps 32-bit master weights."""

    kind: Literal["mixed"] = "mixed"

    @property
    def has_master(self) -> bool:
        return True

    def weight_dtype(self, dtype: str) -> str:
        return self.dtype

    def gradient_dtype(self, dtype: str) -> str:
        return self.dtype

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        return self.dtype
