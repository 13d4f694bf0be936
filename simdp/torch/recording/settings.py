"""Settings: torch's optimizers, wrappers and autocast in a scenario's words."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from simdp.errors import SimdpError
from simdp.strategies import STRATEGIES
from simdp.torch.recording.sharded import is_cut, strategy_of_units
from simdp.workload.optimizers import OPTIMIZERS

OWN = frozenset({"kind", "param_groups"})


def optimizer_keys(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """The section ``workload.optimizer`` of a scenario for one of torch's optimizers.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        One that simdp knows by its class's name.
    names : dict of int to str
        The parameters' names by their identity.

    Raises
    ------
    SimdpError
        If simdp does not know it.
    """
    kind = type(optimizer).__name__.lower()
    if kind not in OPTIMIZERS:
        raise SimdpError(
            f"workload: the optimizer {type(optimizer).__name__} is not known; known: "
            f"{', '.join(sorted(OPTIMIZERS))}. Leave it out, and name one in the scenario."
        )
    member = OPTIMIZERS[kind]
    fields = [name for name in member.model_fields if name not in OWN]
    usual = member(kind=kind)

    def own(group: dict[str, Any]) -> dict[str, Any]:
        found = {name: _plain(group[name]) for name in fields if name in group}
        return {name: one for name, one in found.items() if one != _plain(getattr(usual, name))}

    first, *others = optimizer.param_groups
    keys: dict[str, Any] = {"kind": kind, **own(first)}
    groups = [
        {"params": [names[id(one)] for one in group["params"] if id(one) in names]}
        | {name: _plain(group[name]) for name in fields if _differs(name, group, first)}
        for group in others
    ]
    if groups:
        keys["param_groups"] = groups
    return keys


def optimizer_of(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Any]:
    """As `optimizer_keys`, also of one that has another one for a share of the parameters."""
    names = {id(one): name for name, one in module.named_parameters()}
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    return optimizer_keys(inner, names)


def with_shares(strategy: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same section where the optimizer has a share of the parameters on each rank.

    Raises
    ------
    SimdpError
        If the wrapper's settings have no words beside it.
    """
    if not isinstance(optimizer, ZeroRedundancyOptimizer) or strategy["kind"] != "ddp":
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
    """The section ``strategy`` of a scenario for a wrapped module.

    Raises
    ------
    SimdpError
        If a wrapper or its hook has no such words.
    """
    if isinstance(module, nn.DataParallel):
        return {"kind": "data_parallel"}
    if is_cut(module):
        return strategy_of_units(module)
    if not isinstance(module, nn.parallel.DistributedDataParallel):
        return {"kind": "single"}
    found: dict[str, Any] = {"kind": "ddp"}
    if not module.bucket_bytes_cap_default:
        found["bucket_cap"] = f"{module.bucket_bytes_cap} B"
    for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
        if getattr(module, name):
            found[name] = True
    if not module.broadcast_buffers:
        found["broadcast_buffers"] = False
    hooks = [hook.__name__ for hook, _ in getattr(module, "_comm_hooks", [])]
    for name in hooks:
        if name not in HOOKS:
            raise SimdpError(
                f"--record: the hook {name} has no name in a scenario; those that have one: "
                f"{', '.join(HOOKS)}."
            )
        found["comm_hook"] = HOOKS[name]
    return found


def precision_of() -> dict[str, Any] | None:
    """The section ``workload.precision`` for what autocast does now."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            return {"kind": "amp", "dtype": dtype}
    return None


HOOKS = {
    "allreduce_hook": "none",
    "bf16_compress_hook": "bf16",
    "fp16_compress_hook": "fp16",
    "powerSGD_hook": "power_sgd",
}
"""torch's communication hooks, as scenarios call them."""


def _differs(name: str, group: dict[str, Any], first: dict[str, Any]) -> bool:
    return name in group and _plain(group[name]) != _plain(first.get(name))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
