"""Precision: which numbers have 16 bits. How they are rounded stands in `rounding`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, Spec, problem
from simdp.workload.precision.scaler import ScalerSettings

Low = Literal["bfloat16", "float16"]
Policy = Literal["float32", "lower", "promote"]

SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
"""The normal numbers of float32, which the loss scale and its factors are kept in."""


class Precision(Spec):
    """Which dtype weights are kept in, gradients are sent in and layers run in."""

    kind: str

    @property
    @abstractmethod
    def low(self) -> Low | None:
        """The 16-bit dtype, or None where there is none."""

    @property
    @abstractmethod
    def has_master(self) -> bool:
        """Whether the optimizer updates a 32-bit copy of the weights, beside those of the model."""

    @property
    def widens_outputs(self) -> bool:
        """Whether the model's outputs are cast to full precision as soon as they are made."""
        return False

    @property
    def wide_units(self) -> tuple[str, ...]:
        """Modules within the model whose outputs are cast to full precision, too."""
        return ()

    @abstractmethod
    def scaler(self) -> ScalerSettings | None:
        """Settings of the loss scale, or None where the loss is not scaled."""

    @abstractmethod
    def weight_dtype(self, dtype: str) -> str:
        """Dtype that the model's weights are stored and sent in; ``dtype`` is the workload's."""

    @abstractmethod
    def gradient_dtype(self, dtype: str) -> str:
        """Dtype that gradients are stored and sent in; ``dtype`` is the workload's."""

    @abstractmethod
    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        """Dtype that a layer runs in, which is also that of its output.

        Parameters
        ----------
        policy : {"lower", "float32", "promote"}
            What autocast does with such a layer: 16 bits for products, 32 bits for sums and
            exponentials, the widest of the inputs for the rest.
        input_dtypes : sequence of str
            Of the tensors that flow in, weights left out; whole numbers decide nothing.
        dtype : str
            The workload's.

        References
        ----------
        torch's lists of operations: https://pytorch.org/docs/stable/amp.html#autocast-op-reference
        """

    @abstractmethod
    def problem_with(self, dtype: str) -> str | None:
        """Say why the workload's dtype does not go with this precision, or None."""


class SixteenBit(Precision):
    """Base of the members that compute in 16 bits.

    Attributes
    ----------
    dtype : {"float16", "bfloat16"}
        The 16-bit dtype.
    grad_scaler : bool or None
        Whether the loss is scaled by torch.amp.GradScaler. None scales it with float16, or if one
        of the four keys below is given; bfloat16 has float32's range and needs no loss scale.
    init_scale, growth_factor, backoff_factor, growth_interval
        Of the loss scale, as in torch.amp.GradScaler. Those left out have torch's defaults: 65536,
        2, 0.5, 2000.
    """

    dtype: Low = "float16"
    grad_scaler: Bool | None = None
    init_scale: Float | None = Field(None, ge=SMALLEST, le=LARGEST)
    growth_factor: Float | None = Field(None, gt=1, le=LARGEST)
    backoff_factor: Float | None = Field(None, gt=0, lt=1)
    growth_interval: Int | None = Field(None, ge=1, le=10**9)

    @property
    def low(self) -> Low:
        return self.dtype

    def scaler(self) -> ScalerSettings | None:
        given = self._scaler_keys()
        scales = self.grad_scaler
        if scales is None:
            scales = bool(given) or self.dtype == "float16"
        return ScalerSettings(**given) if scales else None

    def _scaler_keys(self) -> dict[str, Any]:
        keys = {name: getattr(self, name) for name in ScalerSettings._fields}
        return {name: value for name, value in keys.items() if value is not None}

    @model_validator(mode="after")
    def _keys_need_a_scaler(self) -> Self:
        given = self._scaler_keys()
        if self.grad_scaler is False and given:
            raise problem(
                f"grad_scaler is false, but {next(iter(given))} is given, which is a setting of "
                "the scaler; leave one of them out."
            )
        return self

    def problem_with(self, dtype: str) -> str | None:
        if dtype == "float32":
            return None
        return (
            f"dtype is {dtype}, but precision {self.kind} joins {self.dtype} with float32; "
            "write dtype: float32, or precision: full."
        )
