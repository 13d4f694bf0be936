"""Precision policies: dtypes, rounding, and loss scaling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.errors import unknown_name
from simdp.family import Family
from simdp.spec import Bool, Float, Int, Spec, one_of, problem

# Rounding -----------------------------------------------------------------------------------------

DTYPES = ("bfloat16", "float16", "float32", "float64")
"""Names of the floating-point dtypes."""


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name, including bfloat16; raises ValueError for other names."""
    if name not in DTYPES:
        raise ValueError(unknown_name("dtype", name, DTYPES))
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # NumPy itself has no bfloat16

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def rounded(array: Array, dtype_name: str | None) -> Array:
    """Round each value to the nearest one of a narrower dtype, ties to even.

    Parameters
    ----------
    array : ndarray, float32 or float64
        Not modified. float64 goes through float32, as in torch.
    dtype_name : str or None
        One of `DTYPES`; None rounds nothing.

    Returns
    -------
    ndarray
        Of the array's own dtype and shape; the array itself if the dtype is not narrower. Values
        from half a step beyond the largest on become inf: in float16, 65520 and above.
    """
    target = array.dtype if dtype_name is None else numpy_dtype(dtype_name)
    if target.itemsize >= array.dtype.itemsize:
        return array
    with np.errstate(all="ignore"):
        single = array.astype(np.float32, copy=False)
        if target == np.float16:
            single = _to_float16(np.atleast_1d(single)).reshape(array.shape)
        else:
            single = single.astype(target, copy=False).astype(np.float32, copy=False)
        return single.astype(array.dtype, copy=False)


def cast(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Convert to a floating-point dtype as torch does: float64 to 16 bits by way of float32."""
    return rounded(array, dtype.name).astype(dtype, copy=False)


def _to_float16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to float16's 11 bits above 2^-14, and to multiples of 2^-24 below.

    For ``2^e <= |x| < 2^(e + 1)``, float32 numbers around ``2^(e + 13)`` are ``2^(e - 10)`` apart,
    which is float16's step at x: adding that number and subtracting it again rounds as the
    processor does. The exponent is held at -14 for subnormals and at 16, where all become inf.
    """
    # NumPy's own cast takes 5 ns per value, and 86 ns for those that underflow, as gradients do,
    # since it raises a flag for each; this takes 3 ns for either.
    power = values.view(np.uint32) & np.uint32(0x7F800000)  # the bits of 2^e
    np.clip(power, _bits(2.0**-14), _bits(2.0**16), out=power)
    shift = power.view(np.float32)
    shift *= np.float32(2.0**13)
    near = np.abs(values)
    near += shift
    near -= shift
    near[near > np.finfo(np.float16).max] = np.inf
    return np.copysign(near, values, out=near)


def _bits(value: float) -> np.uint32:
    return np.float32(value).view(np.uint32)


# Loss scale ---------------------------------------------------------------------------------------


class ScalerSettings(NamedTuple):
    """Settings of a loss scale; the defaults are torch.amp.GradScaler's."""

    init_scale: float = 65536.0
    """Scale of the first step."""
    growth_factor: float = 2.0
    """Factors of its changes, above and below 1."""
    backoff_factor: float = 0.5
    """Factors of its changes, above and below 1."""
    growth_interval: int = 2000
    """Number of good steps in a row before it grows."""


class GradScaler:
    """The loss scale of a run: the loss is multiplied by it, the gradients by its inverse.

    It backs off after a step with inf or nan in the averaged gradient on any rank; such a step is
    skipped. It grows after a number of good steps in a row.

    Attributes
    ----------
    scale : float
        Scale of the next step, a float32 value.
    growth_tracker : int
        Number of good steps in a row since the last change.
    """

    def __init__(self, settings: ScalerSettings) -> None:
        self.settings = settings
        self.scale = _float32(settings.init_scale)
        self.growth_tracker = 0

    def inverse(self) -> float:
        """Return ``1 / scale``, divided in float64 and rounded to float32, as torch does."""
        with np.errstate(divide="ignore"):
            return _float32(np.float64(1) / np.float64(self.scale))

    def update(self, found_inf: bool) -> None:
        """Compute the scale of the next step; ``found_inf``: the gradients held inf or nan.

        As torch's aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale_cuda_kernel: products
        in float64, rounded to float32; a scale beyond float32 is discarded.
        """
        if found_inf:
            self.scale = _float32(self.scale * self.settings.backoff_factor)
            self.growth_tracker = 0
            return
        self.growth_tracker += 1
        if self.growth_tracker == self.settings.growth_interval:
            grown = _float32(self.scale * self.settings.growth_factor)
            if isfinite(grown):
                self.scale = grown
            self.growth_tracker = 0


def _float32(value: float) -> float:
    """Round to the nearest float32, or to inf."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


# Precisions ---------------------------------------------------------------------------------------

Low = Literal["bfloat16", "float16"]
Policy = Literal["float32", "lower", "promote"]

SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
"""Range of normal float32 numbers, for the loss scale and its factors."""


class Precision(Spec):
    """Dtypes of stored weights, sent gradients and layers."""

    kind: str

    @property
    @abstractmethod
    def low(self) -> Low | None:
        """The 16-bit dtype, if any."""

    @property
    @abstractmethod
    def has_master(self) -> bool:
        """Whether the optimizer updates a 32-bit copy of the weights besides the model's."""

    @property
    def widens_outputs(self) -> bool:
        """Whether the model's outputs are cast to full precision by the model."""
        return False

    @property
    def wide_units(self) -> tuple[str, ...]:
        """Modules within the model with outputs that are cast to full precision too."""
        return ()

    @abstractmethod
    def scaler(self) -> ScalerSettings | None:
        """Settings of the loss scale, or None without scaling."""

    @abstractmethod
    def weight_dtype(self, dtype: str) -> str:
        """Dtype of the model's stored and sent weights; ``dtype`` is the workload's."""

    @abstractmethod
    def gradient_dtype(self, dtype: str) -> str:
        """Dtype of stored and sent gradients; ``dtype`` is the workload's."""

    @abstractmethod
    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        """Dtype in which a layer runs, and of its output.

        Parameters
        ----------
        policy : {"lower", "float32", "promote"}
            Autocast's treatment of the layer: 16 bits for products, 32 bits for sums and
            exponentials, the widest of the inputs for the rest.
        input_dtypes : sequence of str
            Of the inputs without weights; integers are ignored.
        dtype : str
            The workload's.

        References
        ----------
        torch's lists of operations: https://pytorch.org/docs/stable/amp.html#autocast-op-reference
        """

    @abstractmethod
    def problem_with(self, dtype: str) -> str | None:
        """Reason why the workload's dtype does not fit this precision, or None."""


class SixteenBit(Precision):
    """Base of precisions that compute in 16 bits."""

    dtype: Low = "float16"
    """The 16-bit dtype."""
    grad_scaler: Bool | None = None
    """Whether the loss is scaled by torch.amp.GradScaler. None scales it with float16, or if one of
    the four keys below is given; bfloat16 has float32's range and needs no loss scale."""
    init_scale: Float | None = Field(None, ge=SMALLEST, le=LARGEST)
    """Of the loss scale, as in torch.amp.GradScaler, with torch's defaults: 65536, 2, 0.5, 2000."""
    growth_factor: Float | None = Field(None, gt=1, le=LARGEST)
    """Of the loss scale, as in torch.amp.GradScaler, with torch's defaults: 65536, 2, 0.5, 2000."""
    backoff_factor: Float | None = Field(None, gt=0, lt=1)
    """Of the loss scale, as in torch.amp.GradScaler, with torch's defaults: 65536, 2, 0.5, 2000."""
    growth_interval: Int | None = Field(None, ge=1, le=10**9)
    """Of the loss scale, as in torch.amp.GradScaler, with torch's defaults: 65536, 2, 0.5, 2000."""

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


class WholeWeights(Precision):
    """Base of precisions whose weights and gradients have the workload's dtype."""

    @property
    def has_master(self) -> bool:
        return False

    def weight_dtype(self, dtype: str) -> str:
        return dtype

    def gradient_dtype(self, dtype: str) -> str:
        return dtype


class Amp(WholeWeights, SixteenBit):
    """32-bit weights and gradients; autocast runs each layer in 16 or 32 bits."""

    kind: Literal["amp"] = "amp"

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        if policy == "promote":
            floating = {name for name in input_dtypes if "float" in name}
            # An embedding takes only integers, and looks up 32-bit weights.
            return self.dtype if floating == {self.dtype} else dtype
        return self.dtype if policy == "lower" else dtype


class Full(WholeWeights):
    """Everything in the workload's dtype."""

    kind: Literal["full"] = "full"

    @property
    def low(self) -> None:
        return None

    def scaler(self) -> ScalerSettings | None:
        return None

    def compute_dtype(self, policy: Policy, input_dtypes: Sequence[str], dtype: str) -> str:
        return dtype

    def problem_with(self, dtype: str) -> str | None:
        return None


PRECISIONS: Family[Precision] = Family(
    "precisions",
    Precision,
    __name__,
    {
        "amp": "Amp",
        "full": "Full",
        "mixed": "Mixed",
    },
)
AnyPrecision = Annotated[Precision, one_of("precision", PRECISIONS)]


class Mixed(SixteenBit):
    """16-bit weights, gradients and layers; the optimizer keeps 32-bit master weights."""

    kind: Literal["mixed"] = "mixed"
    output_dtype: Literal["float32"] | None = None
    """Dtype of the model's outputs; None for that of its layers. The loss always computes in
    float32."""
    output_units: tuple[str, ...] = ()
    """Modules within the model with outputs of ``output_dtype`` too; the next one casts them back,
    and calls between two of them run in ``output_dtype``. ``fsdp`` and ``hsdp`` with
    ``param_dtype`` set their units here."""

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
