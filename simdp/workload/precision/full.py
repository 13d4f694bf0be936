"""Full precision: one dtype for everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simdp.workload.precision.base import Policy, Precision
from simdp.workload.precision.scaler import ScalerSettings


class Full(Precision):
    """Everything in the workload's dtype."""

    kind: Literal["full"] = "full"

    @property
    def low(self) -> None:
        return None

    @property
    def has_master(self) -> bool:
        return False

    def scaler(self) -> ScalerSettings | None:
        return None

    def weight_dtype(self, dtype: str) -> str:
        return dtype

    def gradient_dtype(self, dtype: str) -> str:
        return dtype

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        return dtype

    def problem_with(self, dtype: str) -> str | None:
        return None
