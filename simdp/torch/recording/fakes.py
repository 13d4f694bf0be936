"""Fakes: a module and its inputs without any memory behind them, at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class AsOnDevices(TorchFunctionMode):
    """Calls that CPUs take apart, as devices run them: dropout and attention in one kernel.

    Tensors that are asked for on a device are the host's, as all are here.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {name: _on_host(value) for name, value in (kwargs or {}).items()}
        args = tuple(_on_host(value) for value in args)
        if func is functional.dropout or func is torch.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> torch.Tensor:
    if not (training if train is None else train) or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """One kernel each way; heads of keys that serve several queries stay as they are."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        share = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(share, dim=-3)
        value = value.repeat_interleave(share, dim=-3)
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
    )
    made: torch.Tensor = found[0]
    return made


@contextmanager
def faked() -> Iterator[FakeTensorMode]:
    """Tensors that are made inside have shapes and no memory."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


@contextmanager
def bare(module: torch.nn.Module) -> Iterator[None]:
    """Without the hooks by which FSDP2 gathers and frees what it has cut."""
    hooks = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks")
    inner = [one for one in module.modules() if isinstance(one, FSDPModule)]
    kept = [(one, name, dict(getattr(one, name))) for one in inner for name in hooks]
    for one, name, _ in kept:
        getattr(one, name).clear()
    try:
        yield
    finally:
        for one, name, before in kept:
            getattr(one, name).update(before)


def fake_leaf(tensor: torch.Tensor, learned: bool) -> torch.Tensor:
    """A tensor like it, without its numbers."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return made.requires_grad_(learned)


def resized(value: Any, batch: int, wanted: int) -> Any:
    """A sample with another number of samples, in every tensor whose first axis counts them."""
    return mapped(value, lambda tensor: _resized(tensor, batch, wanted))


def _resized(tensor: torch.Tensor, batch: int, wanted: int) -> torch.Tensor:
    counted = tensor.ndim > 0 and tensor.shape[0] == batch
    shape = (wanted, *tensor.shape[1:]) if counted else tensor.shape
    return torch.empty(shape, dtype=tensor.dtype, device="cpu")


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nested value with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, change) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(one, change) for one in value)
    return value
