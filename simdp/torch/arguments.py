"""Arguments: those of torch's process groups, in all the ways in which torch gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from simdp.engine.programs.calls import Asked
from simdp.torch.buffers import Buffer


def listed(tensors: Any) -> list[Any]:
    """A list of tensors, of which one may come by itself."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def lists(tensors: Any) -> list[list[Any]]:
    """A list of lists of tensors, of which one may come by itself."""
    if tensors and isinstance(tensors[0], torch.Tensor):
        return [list(tensors)]
    return [list(each) for each in tensors]


def op_of(opts: Any) -> Any:
    """The reduction of some options, or given in their place."""
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def message(name: str, memory: Buffer, whom: str, tag: int) -> Asked:
    """A message, as reports have it."""
    dtype = str(memory.dtype).removeprefix("torch.")
    return Asked(name, dtype, (memory.size,), whom + (f", tag={tag}" if tag else ""))


def flat_tensors(works: Sequence[Any]) -> list[Any]:
    """What several works leave."""
    return [tensor for work in works for tensor in work.tensors]
