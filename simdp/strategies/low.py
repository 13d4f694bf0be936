"""Low: the dtypes that a strategy itself lets layers compute in, and gradients travel in."""

from __future__ import annotations

from typing import Literal

from simdp.workload import Workload

Low = Literal["bfloat16", "float16", "float32"]
"""What `MixedPrecision` and ``MixedPrecisionPolicy`` take."""


def low_problem(param_dtype: Low | None, workload: Workload) -> str | None:
    """Say why a workload does not go with the dtype that its strategy computes in; or None."""
    if param_dtype is None:
        return None
    if workload.dtype != "float32":
        return (
            f"param_dtype: {param_dtype} is of float32 weights, but workload.dtype is "
            f"{workload.dtype}; write workload.dtype: float32, or leave param_dtype out."
        )
    precision = workload.precision
    if precision.kind == "full" or (precision.kind, precision.low) == ("mixed", param_dtype):
        return None
    return (
        f"param_dtype: {param_dtype} says what workload.precision: {precision.kind} of "
        f"{precision.low} says otherwise; leave one of them out."
    )
