"""DTensors on virtual devices: wrappers, random numbers, attention.

torch's C++ code sees wrappers of tensors on the CPU, as it sees plain tensors. What it chooses for
the CPU needs rules for DTensors that torch has for GPUs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from simdp.torch.cuda.machine import CPU, machine
from simdp.torch.ranks import Patches

aten = torch.ops.aten


def patch(patches: Patches) -> None:
    """Install all of it; what imports DTensors, for half a second, with the first mesh."""
    patches.put(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper))
    prepare = cache(partial(_prepare, patches))

    def with_dtensors(here: Any, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        prepare()
        original(*args, **kwargs)

    patches.wrap(DeviceMesh, "__init__", with_dtensors, machine)


def _prepare(patches: Patches) -> None:
    patches.put(import_module("torch.distributed.tensor._random"), "_rng_tracker", WithoutOffsets())
    propagator = import_module(
        "torch.distributed.tensor"
    ).DTensor._op_dispatcher.sharding_propagator
    register = import_module("torch.distributed.tensor.experimental").register_sharding
    for operator, num_outputs in ATTENTION.items():
        register(operator)(_attention_shardings(operator, num_outputs))
        patches.undo(partial(propagator.op_strategy_funcs.pop, operator))


_MAKE_WRAPPER = torch.Tensor._make_wrapper_subclass


def _wrapper(*args: Any, **kwargs: Any) -> Any:
    """Make a wrapper; for autograd it is on the CPU, and for scripts where its inner tensor is."""
    device = kwargs.get("device")
    if machine() is not None and device is not None and torch.device(device).type == "cuda":
        kwargs["device"] = CPU
    return _MAKE_WRAPPER(*args, **kwargs)


class WithoutOffsets:
    """Lets random operators of a DTensor draw from the rank's generator, as on a mesh of CPUs."""

    distribute_region_enabled = False

    @contextmanager
    def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
        yield

    def _manual_seed(self, parallel_seed: int) -> None:
        pass


ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 3,
}
"""Operators of attention on the CPU, and the number of their outputs."""


def _attention_shardings(operator: Any, num_outputs: int) -> Callable[..., Any]:
    """Return torch's rule for GPUs: whole, or split by samples or heads."""
    placements = import_module("torch.distributed.tensor.placement_types")
    names = [argument.name for argument in operator._schema.arguments]

    def shardings(*args: Any, **kwargs: Any) -> list[Any]:
        inputs = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        return [
            ([place] * num_outputs, [place if hasattr(arg, "shape") else None for arg in inputs])
            for place in (placements.Replicate(), placements.Shard(0), placements.Shard(1))
        ]

    return shardings
