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


def output_problem(output_dtype: Low | None, param_dtype: Low | None) -> str | None:
    """Say why outputs cannot be of this dtype where layers compute in that one; or None."""
    made = param_dtype or "float32"
    if output_dtype in (None, "float32", made):
        return None
    return (
        f"output_dtype: {output_dtype}, but layers compute in {made}; write "
        f"{' or '.join(dict.fromkeys(('float32', made)))}, or leave it out."
    )
