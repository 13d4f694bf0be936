"""Mixed precision with master weights (Micikevicius et al., arXiv 1710.03740)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from simdp.spec import problem
from simdp.workload.precision.base import Policy, SixteenBit


class Mixed(SixteenBit):
    """16-bit weights, gradients and layers; the optimizer keeps 32-bit master weights.

    Attributes
    ----------
    output_dtype : "float32" or None
        In which the model hands its outputs on; None is as its layers make them. The loss computes
        in float32 in any case.
    output_units : tuple of str
        Modules within the model whose outputs are of ``output_dtype``, too; the next one casts
        them back, and what runs between two of them runs in ``output_dtype``. ``fsdp`` and ``hsdp``
        with ``param_dtype`` fill in their units.
    """

    kind: Literal["mixed"] = "mixed"
    output_dtype: Literal["float32"] | None = None
    output_units: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _units_need_a_dtype(self) -> Self:
        if self.output_units and self.output_dtype is None:
            raise problem("output_units needs output_dtype: float32; write both, or none.")
        return self

    @property
    def wide_units(self) -> tuple[str, ...]:
        return self.output_units

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
