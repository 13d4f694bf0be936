"""Launched: the kernels of an operator as a dispatch mode sees it.

Counted as simdp's own layers count: each tensor is read or written once by each kernel, products
are two FLOPs per multiply-add, norms look at their input more than once.
"""

from __future__ import annotations

from typing import Any

import torch

from simdp.torch.kernels.sizes import Launched, moved, tensors_in
from simdp.torch.kernels.special import PRODUCTS, SPECIAL, WIDE, WORK, WRITTEN_ONLY

NOTHING = Launched()


def launched_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Launched:
    """Say what an operator launches.

    Parameters
    ----------
    func : torch._ops.OpOverload
        As `torch.utils._python_dispatch.TorchDispatchMode` sees it.
    args, kwargs
        What it took.
    out : object
        What it returned.

    Returns
    -------
    Launched
        Nothing of what moves no memory, such as views and empty tensors.
    """
    name = func.overloadpacket.__name__
    filled = {argument.name for argument in func._schema.arguments if argument.is_out}
    told = {key: value for key, value in kwargs.items() if key not in filled}
    given, made = list(tensors_in([args, told])), list(tensors_in(out))
    if _moves_nothing(func, name, given, made):
        return NOTHING
    if name in SPECIAL:
        kernels = SPECIAL[name](args, out)
    else:
        read = given[1:] if name in WRITTEN_ONLY else given
        count = sum(tensor.numel() for tensor in (made or given)[:1])
        if _reduces(given, made):
            count = max(tensor.numel() for tensor in given)
        kernels = (moved([*read, *made], WORK.get(name, 1.0) * count),)
    if name in PRODUCTS:
        policy, count_of = PRODUCTS[name]
        return Launched(kernels, policy, count_of(args, out))
    return Launched(kernels, "wide" if name in WIDE else "promote")


def _reduces(given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    return bool(given and made) and made[0].numel() < max(one.numel() for one in given)


def _moves_nothing(
    func: Any, name: str, given: list[torch.Tensor], made: list[torch.Tensor]
) -> bool:
    """Whether it only makes room, looks at memory in another way, or has nothing to do with it."""
    if func.namespace in ("prim", "prims") or name.startswith(("empty", "new_empty", "sym_")):
        return True
    if func._schema.is_mutable:
        return False
    if not made:
        return True
    there = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in there for tensor in made)
