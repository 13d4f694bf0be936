"""Dropouts: on the CPU torch takes a dropout apart, into a mask, its scaling and a product.

A device runs one kernel each way; so the mask is charged as that, and what follows is free.
"""

from __future__ import annotations

from typing import Any

import torch

from simdp.torch.kernels.sizes import Launched, Sizes
from simdp.workload.layers.dropout import dropout_cost

aten = torch.ops.aten

CONCERNED = {aten.bernoulli_.float, aten.div_.Scalar, aten.mul.Tensor}
"""The operators of which it is made."""


def stage(func: Any, args: Any, backward: bool) -> str:
    """What an operator is of a dropout: ``"drawn"``, ``"counted"``, ``"backward"`` or nothing."""
    if func is aten.bernoulli_.float:
        args[0].untyped_storage().mask = True
        return "drawn"
    if func is aten.div_.Scalar:
        return "counted" if _is_mask(args[0]) else ""
    if _is_mask(args[0]) or _is_mask(args[1]):
        return "backward" if backward else "counted"
    return ""


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.untyped_storage().mask)


def counted(part: str, launched: Launched, args: Any) -> Launched:
    """What is launched for it, instead of what the CPU runs."""
    if part == "counted":
        return Launched()
    if part in ("drawn", "backward"):
        kernel = dropout_cost(float(args[0].numel()), 0)  # without the numbers, the mask is left
        return Launched((Sizes(kernel.flops, 2.0 * args[0].numel(), kernel.nbytes),))
    return launched
