"""Mixed precision with master weights (Micikevicius et al., arXiv 1710.03740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simdp.workload.precision.base import Policy, SixteenBit


class Mixed(SixteenBit):
    """16-bit weights, gradients and layers; the optimizer keeps 32-bit master weights.

    Attributes
    ----------
    output_dtype : "float32" or None
        In which the model hands its outputs on; None is as its layers make them. The loss computes
        in float32 in any case.
    """

    kind: Literal["mixed"] = "mixed"
    output_dtype: Literal["float32"] | None = None

    @property
    def widens_outputs(self) -> bool:
        return self.output_dtype is not None

    @property
    def has_master(self) -> bool:
        return True

    def weight_dtype(self, dtype: str) -> str:
        return self.dtype

    def gradient_dtype(self, dtype: str) -> str:
        return self.dtype

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        return self.dtype
