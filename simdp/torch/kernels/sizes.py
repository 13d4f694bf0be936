"""Sizes: what tensors ask of a device's memory, and what a launched operator is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch


class Sizes(NamedTuple):
    """What one kernel asks of a device.

    Attributes
    ----------
    flops : float
        Floating-point operations; a multiply-add counts as two.
    elements : float
        Real numbers that it reads and writes.
    nbytes : float
        Bytes of all else that it does, such as indices and masks.
    """

    flops: float = 0.0
    elements: float = 0.0
    nbytes: float = 0.0


class Launched(NamedTuple):
    """What an operator launches.

    Attributes
    ----------
    kernels : tuple of Sizes
        In their order; none of what only looks at memory in another way.
    policy : {"fused_attention", "product", "promote", "wide"}
        What the roofline and autocast make of it.
    products : float
        FLOPs of matrix products, as publications count them.
    """

    kernels: tuple[Sizes, ...] = ()
    policy: str = "promote"
    products: float = 0.0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of an operator's arguments or results, each once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, torch.Tensor):
            if id(one) not in seen:
                seen.add(id(one))
                yield one
        elif isinstance(one, dict):
            stack.extend(reversed(one.values()))
        elif isinstance(one, (list, tuple)):
            stack.extend(reversed(one))


def stored(tensor: torch.Tensor) -> int:
    """How many different numbers a tensor shows: those along an expanded axis are one."""
    found = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found *= length if stride or not length else 1
    return found


def moved(tensors: Iterable[torch.Tensor], flops: float = 0.0) -> Sizes:
    """A kernel that reads or writes each of these once."""
    elements = nbytes = 0.0
    for tensor in tensors:
        if tensor.is_floating_point():
            elements += stored(tensor)
        else:
            nbytes += stored(tensor) * tensor.element_size()
    return Sizes(flops, elements, nbytes)


def mean_itemsize(values: Any) -> float:
    """Bytes of a real number in these tensors, the mean over all; 0 where there is none."""
    elements = nbytes = 0
    for tensor in tensors_in(values):
        if tensor.is_floating_point():
            count = stored(tensor)
            elements += count
            nbytes += count * tensor.element_size()
    return nbytes / elements if elements else 0.0
