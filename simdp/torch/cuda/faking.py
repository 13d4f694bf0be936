"""Tensors without numbers, for models that exceed the host's memory.

Real numbers are on torch's device ``meta``: shapes, dtypes and sizes are correct, so that times and
memory are. Integers and tensors made from Python data keep their values, so that samplers shuffle;
combined with tensors without numbers, the result has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from simdp.errors import ProgramError
from simdp.torch.cuda import autocast
from simdp.torch.cuda.machine import CPU, KEY, VirtualMachine, machine
from simdp.torch.ranks import Patches

aten = torch.ops.aten

META = torch.device("meta")

FACTORIES = {
    aten.empty.memory_format, aten.empty_strided.default, aten.zeros.default, aten.ones.default,
    aten.full.default, aten.rand.default, aten.rand.generator, aten.randn.default,
    aten.randn.generator,
}  # fmt: skip
"""Operators that create large tensors of real numbers."""

COMPARISONS = {aten.lt, aten.gt, aten.le, aten.ge, aten.eq}
"""Operators that give False for a number without a value, as for nan."""

PLACES = {aten.argmax, aten.argmin}
"""Operators that give the first place for numbers without values, as for nan."""

_CHOSEN = [False]


@contextmanager
def faked(chosen: bool) -> Iterator[None]:
    """Set whether ranks that begin now have numbers."""
    before, _CHOSEN[0] = _CHOSEN[0], chosen
    try:
        yield
    finally:
        _CHOSEN[0] = before


def is_chosen() -> bool:
    """Return whether ranks that begin now have no numbers."""
    return _CHOSEN[0]


def prepared(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return arguments with which an operator runs without numbers, if any of them has none."""
    changed = dict(kwargs)
    if func in FACTORIES:
        if not args[0]:  # a single number
            return args, changed
        dtype = changed.get("dtype") or torch.get_default_dtype()
        if func is aten.full.default and changed.get("dtype") is None:
            dtype = torch.float32 if isinstance(args[1], float) else torch.int64
        if dtype.is_floating_point or dtype.is_complex:
            changed["device"] = META
            if "generator" in changed:
                changed["generator"] = None
        return args, changed
    if not _any_meta(args) and not _any_meta(changed.values()):
        if changed.get("device") == META:  # whole numbers that torch uses with real ones
            changed["device"] = CPU
        return args, changed
    if "device" in changed:
        changed["device"] = META
    return _without(args), {name: _without(value) for name, value in changed.items()}


def _any_meta(values: Any) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                return True
        elif isinstance(value, (list, tuple)) and _any_meta(value):
            return True
    return False


def _without(value: Any) -> Any:
    """Return the same without numbers; a tensor on ``meta`` is returned unchanged."""
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else torch.empty_like(value, device=META)
    if isinstance(value, (list, tuple)):
        return type(value)(_without(inner) for inner in value)
    return value


def run(here: VirtualMachine, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run an operator of a rank without numbers.

    torch's Python code for it sees tensors on ``meta``.

    Raises
    ------
    ProgramError
        If its result depends on numbers.
    """
    if func is aten._local_scalar_dense.default and args[0].is_meta:
        if args[0].is_floating_point():
            return nan
        if args[0].untyped_storage().compared:
            return False
        raise ProgramError(_depends("what a script does next"))
    ready, named = prepared(func, args, kwargs)
    try:
        with _as_they_are(here):
            out = func(*ready, **named)
    except NotImplementedError:
        raise ProgramError(_depends(f"what {func._schema.name} gives")) from None
    if func.overloadpacket in PLACES and out.is_meta:
        return torch.zeros(out.shape, dtype=out.dtype)
    if func.overloadpacket in COMPARISONS and out.is_meta:
        out.untyped_storage().compared = True
    changed = func._schema.is_mutable and isinstance(out, torch.Tensor)
    if changed and ready and out is ready[0]:
        return args[0]
    return out


def collective(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run a functional collective by its group, where torch would only return the shape.

    Raises
    ------
    ProgramError
        If it is not timed without numbers.
    """
    name = func.overloadpacket.__name__.rstrip("_")
    if name in ("wait_tensor", "_wrap_tensor_autograd"):
        return args[0]
    if name not in COLLECTIVES:
        raise ProgramError(
            f"--fake: {func._schema.name} is not timed without numbers; known: "
            f"{', '.join(sorted(COLLECTIVES))}. Run the script without --fake."
        )
    bound = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | dict(kwargs)
    group = dist.distributed_c10d._resolve_process_group(bound["group_name"])
    tensor, size = bound["input"], bound.get("group_size", 1)
    if name == "all_reduce":
        out = torch.empty_like(tensor)
        dist.all_reduce(out, group=group)
        return out
    rows = tensor.shape[0] * size if name.startswith("all_gather") else tensor.shape[0] // size
    out = tensor.new_empty((rows, *tensor.shape[1:]))
    getattr(dist, name)(out, tensor, group=group)
    return out


COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Functional collectives by their names in ``_c10d_functional`` and in `torch.distributed`."""


@contextmanager
def _as_they_are(here: VirtualMachine) -> Iterator[None]:
    """Let torch's code see tensors on ``meta``."""
    here.rank.state[KEY] = None
    try:
        yield
    finally:
        here.rank.state[KEY] = here


def _depends(what: str) -> str:
    return (
        f"--fake: {what} depends on numbers, and there are none; run the script without --fake, or "
        "without this."
    )


def patch(patches: Patches) -> None:
    """Replace or reject functions that read numbers in Python."""
    patches.put(torch.UntypedStorage, "compared", False)
    for name in ("numpy", "__array__", "tolist"):
        patches.wrap(torch.Tensor, name, _refuse, _fake_machine)
    patches.wrap(torch.Tensor, "__format__", _format, _fake_machine)
    for name in ("__torch_dispatch__", "from_tensor"):
        patches.wrap(FakeTensorMode, name, _see, _fake_machine)
    patches.wrap(FakeTensor, "__new__", _see, _fake_machine)
    functional = torch.nn.functional
    patches.wrap(functional, "scaled_dot_product_attention", _attention, _fake_machine)


def _fake_machine() -> VirtualMachine | None:
    here = machine()
    return here if here is not None and here.fake else None


def _see(here: VirtualMachine, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Let torch's functions that query shapes see the tensors without numbers."""
    with _as_they_are(here):
        return original(*args, **kwargs)


def _refuse(here: VirtualMachine, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if tensor.is_meta:
        raise ProgramError(_depends("what a script does next"))
    return original(tensor, *args, **kwargs)


def _format(here: VirtualMachine, original: Any, tensor: Any, format_spec: str) -> Any:
    """Format a number that has no value like ``item()``."""
    if tensor.is_meta and tensor.dim() == 0:
        return format(tensor.item(), format_spec)
    return original(tensor, format_spec)


def _is_low(tensor: Any) -> bool:
    """Return whether fused attention runs on it in 16 bits."""
    return tensor.dtype is not torch.float32 or torch.is_autocast_enabled("cuda")


def _attention(
    here: VirtualMachine, original: Callable[..., Any], query: Any, key: Any, value: Any,
    attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Choose the kernel, since ``meta`` has no device that would."""
    inputs: Sequence[Any] = (query, key, value)
    grouped = enable_gqa and not _is_low(query)  # which no fused kernel of a device takes
    if dropout_p or grouped or not query.is_meta or query.dim() != 4:
        return original(
            *inputs, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if torch.is_autocast_enabled("cuda"):
        inputs = [autocast.cast(t, torch.get_autocast_dtype("cuda"), here) for t in inputs]
    return aten._scaled_dot_product_flash_attention_for_cpu(
        *inputs, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
