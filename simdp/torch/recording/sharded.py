"""Sharded: torch's ``fully_shard`` in a scenario's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from simdp.errors import SimdpError

HOOKS = {
    "_all_reduce_hook": "set_all_reduce_hook",
    "gradient_divide_factor": "set_gradient_divide_factor",
}
"""What a unit may have been given that changes sums, and by which call."""


def strategy_of_units(module: nn.Module) -> dict[str, Any]:
    """The section ``strategy`` of a scenario for a model after its first forward.

    Parameters
    ----------
    module : torch.nn.Module
        The root, or a model of which only parts were given to ``fully_shard``.

    Raises
    ------
    SimdpError
        If scenarios have no words for how it is cut.
    """
    if not isinstance(module, FSDPModule):
        part = next(name for name, one in module.named_modules() if isinstance(one, FSDPModule))
        raise SimdpError(
            f"--record: fully_shard has {part} and not the whole of {type(module).__name__}; call "
            "it on the model too, after its parts."
        )
    units = {name: one for name, one in module.named_modules() if isinstance(one, FSDPModule)}
    states = {name: one._get_fsdp_state() for name, one in units.items()}
    groups = {name: _only_group(name, state) for name, state in states.items()}
    first = groups[""] or next((group for group in groups.values() if group), None)
    if first is None:
        raise SimdpError("--record: fully_shard found no parameters; record a model that learns.")
    found = {**_shards(first), "units": [name for name in units if name] or "whole"}
    found |= _freed(groups) | _precision(states, groups)
    if isinstance(_one("offload_policy", _of(groups, "offload_policy")), CPUOffloadPolicy):
        found["offload"] = "cpu"
    if not _one("set_reshard_after_backward", _of(groups, "reshard_after_backward")):
        found["reshard_after_backward"] = False
    if not _one("set_requires_gradient_sync", _of(groups, "reduce_grads")):
        found["sync"] = "last"
    for way in ("forward", "backward"):
        ahead = [len(getattr(state, f"_states_to_{way}_prefetch")) for state in states.values()]
        if any(ahead):
            found[f"{way}_prefetch"] = max(ahead)
    return found


def is_cut(module: nn.Module) -> bool:
    """Whether ``fully_shard`` has cut a module, or parts of it."""
    return any(isinstance(one, FSDPModule) for one in module.modules())


def _only_group(name: str, state: Any) -> Any:
    """A unit's parameters; None of one whose parts have all of them."""
    modules, groups = state._modules, state._fsdp_param_groups
    if len(modules) > 1 or len(groups) > 1:
        of = f"{name or 'the root'} has {max(len(modules), len(groups))}"
        what = "modules" if len(modules) > 1 else "meshes"
        raise SimdpError(
            f"--record: a unit of fully_shard is of one module and one mesh in a scenario, and {of}"
            f" {what}; give fully_shard one module at a time."
        )
    group = groups[0] if groups else None
    for key, call in HOOKS.items():
        if group is not None and getattr(group, key) is not None:
            raise SimdpError(f"--record: {call} has no words in a scenario; leave it out.")
    return group


def _of(groups: dict[str, Any], key: str) -> list[Any]:
    return [getattr(group, key) for group in groups.values() if group is not None]


def _one(call: str, values: Iterable[Any]) -> Any:
    """What all units have.

    Raises
    ------
    SimdpError
        If it is not the same.
    """
    first, *others = values
    if any(other != first for other in others):
        raise SimdpError(
            f"--record: {call} differs between units, which a scenario has no words for; give all "
            "units the same."
        )
    return first


def _shards(group: Any) -> dict[str, Any]:
    """The strategy's name, by the dimensions of its mesh."""
    mesh = group.mesh_info
    size = getattr(mesh, "shard_mesh_size", None)
    if size is None:
        raise SimdpError("--record: replicate() has no words in a scenario; use DDP.")
    if getattr(mesh, "replicate_mesh_size", None) is None:
        if size == torch.distributed.get_world_size():
            return {"kind": "fsdp"}
        raise SimdpError(
            f"--record: fully_shard over {size} of {torch.distributed.get_world_size()} ranks has "
            "no words in a scenario; give it a mesh of all, or one of two dimensions."
        )
    return {"kind": "hsdp", "shard_size": size}


def _freed(groups: dict[str, Any]) -> dict[str, Any]:
    """Which units are freed after forward: all but the root is what a scenario does by itself."""
    found = {}
    for name, group in groups.items():
        if group is not None:
            own, after = group.mesh_info, group.post_forward_mesh_info
            found[name] = False if after is None else after is own or after.shard_mesh_size
    inner = {name: freed for name, freed in found.items() if name}
    if inner and all(freed is True for freed in inner.values()) and not found.get("", False):
        return {}
    freed = _one("reshard_after_forward", found.values())
    return {"reshard_after_forward": freed}


def _precision(states: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any]:
    """Of ``MixedPrecisionPolicy``."""
    policy = states[""]._mp_policy
    keys = ("param_dtype", "reduce_dtype")
    for name, state in states.items():
        if groups[name] is not None:
            for key in keys:
                _one(
                    f"MixedPrecisionPolicy({key}=...)",
                    [getattr(policy, key), getattr(state._mp_policy, key)],
                )
    made = {name: state._mp_policy.output_dtype for name, state in states.items()}
    whole = made.pop("")
    alone = whole is not None and bool(made) and set(made.values()) == {None}
    if not alone:
        _one("MixedPrecisionPolicy(output_dtype=...)", [whole, *made.values()])
    given = {key: getattr(policy, key) for key in (*keys, "output_dtype")}
    return ({"output_dtype_at": "root"} if alone else {}) | {
        key: str(dtype).removeprefix("torch.") for key, dtype in given.items() if dtype is not None
    }
