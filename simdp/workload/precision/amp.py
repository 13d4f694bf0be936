"""Automatic mixed precision, as torch.autocast with torch.amp.GradScaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simdp.workload.precision.base import Policy, SixteenBit


class Amp(SixteenBit):
    """32-bit weights and gradients; autocast runs each layer in 16 or 32 bits."""

    kind: Literal["amp"] = "amp"

    @property
    def has_master(self) -> bool:
        return False

    def weight_dtype(self, dtype: str) -> str:
        return dtype

    def gradient_dtype(self, dtype: str) -> str:
        return dtype

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        if policy == "promote":
            floating = {name for name in input_dtypes if "float" in name}
            # An embedding is given whole numbers only and looks up 32-bit weights.
            return self.dtype if floating == {self.dtype} else dtype
        return self.dtype if policy == "lower" else dtype
