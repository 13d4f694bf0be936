"""Settings and sharded strategies of a recorded script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer

from simdp.errors import SimdpError, unknown_name
from simdp.strategies import STRATEGIES, strategy_class
from simdp.workload.optimizers import OPTIMIZERS

# Sharded ------------------------------------------------------------------------------------------

HOOKS = {
    "_all_reduce_hook": "set_all_reduce_hook",
    "gradient_divide_factor": "set_gradient_divide_factor",
}
"""Settings of a unit that change sums, and the calls that set them."""


def strategy_of_units(module: nn.Module) -> dict[str, Any]:
    """Return the section ``strategy`` of a scenario for a model after its first forward.

    ``module`` is the root, or a model with only parts given to ``fully_shard``.

    Raises
    ------
    SimdpError
        If scenarios cannot express its sharding.
    """
    if not isinstance(module, FSDPModule):
        part = next(iter(_units(module)))
        raise SimdpError(
            f"--record: fully_shard has {part} and not the whole of {type(module).__name__}; call "
            "it on the model too, after its parts."
        )
    states = {name: unit._get_fsdp_state() for name, unit in _units(module).items()}
    groups = {name: _only_group(name, state) for name, state in states.items()}
    first = groups[""] or next((group for group in groups.values() if group), None)
    if first is None:
        raise SimdpError("--record: fully_shard found no parameters; record a model that learns.")
    section = {**_shards(first), "units": [name for name in states if name] or "whole"}
    section |= _freed(groups) | _precision(states, groups)
    if isinstance(_common("offload_policy", _of(groups, "offload_policy")), CPUOffloadPolicy):
        section |= {"offload": "cpu"}
    if not _common("set_reshard_after_backward", _of(groups, "reshard_after_backward")):
        section |= {"reshard_after_backward": False}
    if not _common("set_requires_gradient_sync", _of(groups, "reduce_grads")):
        section |= {"sync": "last"}
    for way in ("forward", "backward"):
        ahead = [len(getattr(state, f"_states_to_{way}_prefetch")) for state in states.values()]
        if any(ahead):
            section[f"{way}_prefetch"] = max(ahead)
    return section


def _units(module: nn.Module) -> dict[str, FSDPModule]:
    parts = module.named_modules()
    return {name: part for name, part in parts if isinstance(part, FSDPModule)}


def _only_group(name: str, state: Any) -> Any:
    """Return a unit's parameters; None for one with replicated parameters."""
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


def _common(call: str, values: Iterable[Any]) -> Any:
    """Return the common value of all units.

    Raises
    ------
    SimdpError
        If they differ.
    """
    first, *others = values
    if any(other != first for other in others):
        raise SimdpError(
            f"--record: {call} differs between units, which a scenario has no words for; give all "
            "units the same."
        )
    return first


def _shards(group: Any) -> dict[str, Any]:
    """Return the strategy's name, by the dimensions of its mesh."""
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
    """Return units freed after forward: all but the root is a scenario's default."""
    freed = {}
    for name, group in groups.items():
        if group is not None:
            own, after = group.mesh_info, group.post_forward_mesh_info
            freed[name] = False if after is None else after is own or after.shard_mesh_size
    inner = [is_freed for name, is_freed in freed.items() if name]
    if inner and all(is_freed is True for is_freed in inner) and not freed.get("", False):
        return {}
    return {"reshard_after_forward": _common("reshard_after_forward", freed.values())}


def _precision(states: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any]:
    policy = states[""]._mp_policy
    keys = ("param_dtype", "reduce_dtype")
    for name, state in states.items():
        if groups[name] is not None:
            for key in keys:
                _common(
                    f"MixedPrecisionPolicy({key}=...)",
                    [getattr(policy, key), getattr(state._mp_policy, key)],
                )
    made = {name: state._mp_policy.output_dtype for name, state in states.items()}
    whole = made.pop("")
    alone = whole is not None and bool(made) and set(made.values()) == {None}
    if not alone:
        _common("MixedPrecisionPolicy(output_dtype=...)", [whole, *made.values()])
    dtypes = {key: getattr(policy, key) for key in (*keys, "output_dtype")}
    return ({"output_dtype_at": "root"} if alone else {}) | {
        key: str(dtype).removeprefix("torch.") for key, dtype in dtypes.items() if dtype is not None
    }


# Settings -----------------------------------------------------------------------------------------

OWN = frozenset({"kind", "param_groups"})


def optimizer_keys(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """Return the section ``workload.optimizer`` of a scenario for one of torch's optimizers.

    ``names`` are the parameters' names by identity.

    Raises
    ------
    SimdpError
        If simdp does not support the optimizer.
    """
    kind = type(optimizer).__name__.lower()
    member = OPTIMIZERS.get(kind)
    if member is None:
        lead = f"workload: the optimizer {type(optimizer).__name__} is not known"
        line = unknown_name("optimizer", kind, sorted(OPTIMIZERS), lead=lead)
        raise SimdpError(f"{line} Leave it out, and name one in the scenario.")
    fields = [name for name in member.model_fields if name not in OWN]
    usual = member(kind=kind)

    def unlike(group: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        plain = {name: _plain(group[name]) for name in fields if name in group}
        return {name: value for name, value in plain.items() if value != _plain(other.get(name))}

    first, *others = optimizer.param_groups
    keys = {"kind": kind, **unlike(first, {name: getattr(usual, name) for name in fields})}
    groups = [
        {"params": [names[id(weight)] for weight in group["params"] if id(weight) in names]}
        | unlike(group, first)
        for group in others
    ]
    return {**keys, "param_groups": groups} if groups else keys


def optimizer_of(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """As `optimizer_keys`, also for an optimizer of a rank's share of the parameters."""
    names = {id(weight): name for name, weight in module.named_parameters()}
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    return optimizer_keys(inner, names)


def with_shares(strategy: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the same section if the optimizer has a share of the parameters on each rank.

    Raises
    ------
    SimdpError
        If a scenario cannot express the wrapper's settings together with it.
    """
    wrapper = strategy_class(strategy["kind"]).wrapper
    if not isinstance(optimizer, ZeroRedundancyOptimizer) or wrapper != "DistributedDataParallel":
        return strategy
    fields = STRATEGIES["zero1"].model_fields
    unknown = [name for name in strategy if name not in fields]
    if unknown:
        raise SimdpError(
            f"--record: ZeroRedundancyOptimizer beside DistributedDataParallel({unknown[0]}=...) "
            "has no words in a scenario; leave one of them out."
        )
    views = {"parameters_as_bucket_view": True} if optimizer.parameters_as_bucket_view else {}
    return {**strategy, "kind": "zero1", **views}


def strategy_of(module: nn.Module) -> dict[str, Any]:
    """Return the section ``strategy`` of a scenario for a wrapped module.

    Raises
    ------
    SimdpError
        If a scenario cannot express the wrapper or its hook.
    """
    if isinstance(module, nn.DataParallel):
        return {"kind": "data_parallel"}
    if _units(module):
        return strategy_of_units(module)
    if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
        raise SimdpError(
            "--record: FullyShardedDataParallel joins parameters into flat ones, which a recording "
            "cannot tell apart; record the model under DDP, and set strategy: fsdp1 in the "
            "scenario."
        )
    if not isinstance(module, nn.parallel.DistributedDataParallel):
        return {"kind": "single"}
    section: dict[str, Any] = {"kind": "ddp"}
    if not module.bucket_bytes_cap_default:
        section |= {"bucket_cap": f"{module.bucket_bytes_cap} B"}
    for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
        if getattr(module, name):
            section[name] = True
    if not module.broadcast_buffers:
        section |= {"broadcast_buffers": False}
    hooks = [hook.__name__ for hook, _ in getattr(module, "_comm_hooks", [])]
    for name in hooks:
        if name not in HOOK_SETTINGS:
            raise SimdpError(
                f"--record: the hook {name} has no name in a scenario; those that have one: "
                f"{', '.join(HOOK_SETTINGS)}."
            )
        section |= {"comm_hook": HOOK_SETTINGS[name]}
    return section


def precision_of() -> dict[str, Any] | None:
    """Return the section ``workload.precision`` for the current autocast settings.

    Autocast to float32 changes no dtype of a model in float32.
    """
    for device in ("cuda", "cpu"):
        dtype = torch.get_autocast_dtype(device)
        if torch.is_autocast_enabled(device) and dtype is not torch.float32:
            return {"kind": "amp", "dtype": str(dtype).removeprefix("torch.")}
    return None


HOOK_SETTINGS = {
    "allreduce_hook": "none",
    "bf16_compress_hook": "bf16",
    "fp16_compress_hook": "fp16",
    "powerSGD_hook": "power_sgd",
}
"""Names of torch's communication hooks in scenarios."""


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
