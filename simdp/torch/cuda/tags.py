"""Tags: on which virtual device a tensor is."""

from __future__ import annotations

from typing import Any

import torch

from simdp.torch.cuda.ledger import Block

PLAIN = (torch.Tensor, torch.nn.Parameter)

CPU = torch.device("cpu")


class Unclaimed:
    """Of a storage that autograd made by itself: it belongs to the first device that uses it."""

    place, device = -1, CPU
    nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Nobody counts it yet."""


UNCLAIMED = Unclaimed()


def block_of(tensor: Any) -> Block | Unclaimed | None:
    """What the tensor's storage holds of a device; None on the CPU."""
    try:
        found: Block | Unclaimed | None = tensor.untyped_storage().block
    except NotImplementedError:  # sparse tensors have none; nor have wrappers
        inner = inner_of(tensor)
        return None if inner is None else block_of(inner)
    if found is None and type(tensor) not in PLAIN:
        inner = inner_of(tensor)
        return None if inner is None else block_of(inner)
    return found


def inner_of(tensor: Any) -> Any:
    """A plain tensor that a wrapper of another class holds; None for all others."""
    if tensor.layout in (torch.sparse_coo,):
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or type(tensor) in PLAIN:
        return None
    names, _ = flatten()
    return getattr(tensor, names[0]) if names else None


def device_of(tensor: Any) -> torch.device | None:
    """The virtual device that a tensor is on; None on the CPU."""
    found = block_of(tensor)
    return None if found is None or found.place < 0 else found.device
