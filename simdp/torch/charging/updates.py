"""Charges optimizer updates.

The dispatch mode costs more than small operators. The charge of a step is known once a step has
created no new state: the same tensors are read and written, on the same devices, and temporary
tensors use as much memory as before.

Scenarios charge an update the bytes that it reads and writes, or the launches of kernels over lists
of tensors, whichever takes longer; its operators, on the host, run tensor by tensor. Therefore the
operators are free, and the update is charged as in scenarios.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from pydantic import ValidationError
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from simdp.torch.cuda.machine import PLAIN, VirtualMachine, inner_of, machine, place_of
from simdp.torch.ranks import Patches, Rank
from simdp.workload.optimizers import OPTIMIZERS
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.step_costs import list_launches, update_seconds

# Settled ------------------------------------------------------------------------------------------


class OptimizerStep(NamedTuple):
    """Cache key of an optimizer's step."""

    parameters: tuple[int, ...]  # parameters with gradients, by identity
    settings: tuple[bool, ...]  # enabled settings of the groups
    state: int  # tensors of state before it


class Watch(NamedTuple):
    """A watched step, and each device's bytes before it: current and peak."""

    step: OptimizerStep
    before: list[tuple[int, int]]


_SETTLED: WeakKeyDictionary[Any, tuple[OptimizerStep, list[int]]] = WeakKeyDictionary()
"""Last step without new state of each optimizer, and its temporary memory on each device [bytes].
"""


def begin(optimizer: Any, here: VirtualMachine) -> Any:
    """Watch a step, unless it is known; returns the argument of `end`."""
    mode = _get_current_dispatch_mode()
    if here.fake or getattr(mode, "machine", None) is not here or not _is_torchs(optimizer):
        return None
    step = _step(optimizer)
    ledgers = [device.ledger for device in here.devices]
    settled, extra = _SETTLED.get(optimizer, (None, []))
    if settled == step:
        for ledger, nbytes in zip(ledgers, extra, strict=True):
            ledger.take(nbytes)
            ledger.give(nbytes)
        return _pop_mode()
    before = [(ledger.allocated, ledger.peak) for ledger in ledgers]
    for ledger in ledgers:
        ledger.peak = ledger.allocated
    return Watch(step, before)


def end(optimizer: Any, here: VirtualMachine, begun: Any) -> None:
    """End a step."""
    if begun is None:
        return
    if not isinstance(begun, Watch):
        _push_mode(begun)
        return
    extra = []
    for device, (allocated, peak) in zip(here.devices, begun.before, strict=True):
        extra.append(device.ledger.peak - allocated)
        device.ledger.peak = max(device.ledger.peak, peak)
    if _num_state(optimizer) == begun.step.state:
        _SETTLED[optimizer] = begun.step, extra


def _is_torchs(optimizer: Any) -> bool:
    """Return whether only torch's code runs in a step, on plain tensors."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if len(optimizers._global_optimizer_pre_hooks) > 1:  # ours
        return False
    if len(optimizers._global_optimizer_post_hooks) > 1:
        return False
    return all(type(parameter) in PLAIN for parameter in _parameters(optimizer.param_groups))


def _parameters(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [parameter for group in groups for parameter in group["params"]]


def _step(optimizer: Any) -> OptimizerStep:
    groups = optimizer.param_groups
    learned = tuple(
        id(parameter) for parameter in _parameters(groups) if parameter.grad is not None
    )
    settings = tuple(
        bool(value) for group in groups for name, value in group.items() if name != "params"
    )
    return OptimizerStep(learned, settings, _num_state(optimizer))


def _num_state(optimizer: Any) -> int:
    kept = (value for state in optimizer.state.values() for value in state.values())
    return sum(isinstance(value, torch.Tensor) for value in kept)


# Updates ------------------------------------------------------------------------------------------

LIKE_GRADIENTS = ("lr", "params", "initial_lr", "max_lr", "min_lr")
"""Options of a group without an effect on an update's memory traffic."""


def patch(patches: Patches) -> None:
    """Count the steps of all optimizers."""
    patches.undo(register_optimizer_step_pre_hook(_begin).remove)
    patches.undo(register_optimizer_step_post_hook(_end).remove)
    for name, module in list(sys.modules.items()):  # torch.optim forgets the names of its own
        if name.startswith("torch.optim.") and hasattr(module, "_default_to_fused_or_foreach"):
            patches.put(module, "_default_to_fused_or_foreach", _neither)


def _neither(*_: Any, **__: Any) -> tuple[bool, bool]:
    """Disable foreach and fused updates unless a script requests them, as on the CPU."""
    return False, False


def _begin(optimizer: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    here = machine()
    if here is None or len(args) > 1 or kwargs.get("closure") is not None:
        return
    seconds = moved(optimizer, here)
    if seconds is not None:
        here.update = seconds
        here.begun = begin(optimizer, here)


def _end(optimizer: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    here = machine()
    if here is not None and here.update is not None:
        seconds, here.update = here.update, None
        begun, here.begun = here.begun, None
        end(optimizer, here, begun)
        if here.turns is not None:
            here.turns.updated(sum(seconds.values()))
        for place, taken in seconds.items():
            here.charge(place, taken, "update")
    if here is not None:
        for call in AFTER:
            call(here.rank, optimizer)


AFTER: list[Callable[[Rank, Any], None]] = []
"""Functions called after each step of an optimizer."""


@dataclass
class ListOfTensors:
    """Parameters of a group on one device: their elements, and time to move their bytes [s]."""

    speed: Any
    sizes: list[int]
    moving: float = 0.0


def moved(optimizer: Any, here: VirtualMachine) -> dict[int, float] | None:
    """Return the time of a step on each device [s]; None for optimizers unknown to scenarios."""
    kind = type(optimizer).__name__.lower()
    seconds: dict[int, float] = {}
    for group in optimizer.param_groups:
        spec = spec_of(kind, group)
        if spec is None:
            return None
        lists: dict[int, ListOfTensors] = {}
        for parameter in _parameters([group]):
            if parameter.grad is None:
                continue
            place, local = place_of(parameter), inner_of(parameter)
            tensor = parameter if local is None else local
            speed = here.devices[place].speed if place >= 0 else here.speed
            recorded = here.turns and here.turns.update(parameter, tensor.numel())
            if recorded is not None:
                seconds[place] = seconds.get(place, 0.0) + recorded
                continue
            nbytes = spec.nbytes_moved(tensor.numel(), tensor.element_size())
            tensors = lists.setdefault(place, ListOfTensors(speed, []))
            tensors.sizes.append(tensor.numel())
            tensors.moving += speed.updating(nbytes)
        for place, tensors in lists.items():
            launch = tensors.speed.launch
            over_lists = list_launches(spec, tensors.sizes) * launch
            in_loop = len(tensors.sizes) * spec.launches_per_tensor() * launch
            taken = float(update_seconds(tensors.moving, over_lists, in_loop))
            seconds[place] = seconds.get(place, 0.0) + taken
    return seconds


def spec_of(kind: str, group: Mapping[str, Any]) -> Optimizer | None:
    """Return the scenario's optimizer of this kind with the arguments of a group."""
    member = OPTIMIZERS.get(kind)
    if member is None:
        return None
    arguments = {
        name: value
        for name, value in group.items()
        if name in member.model_fields
        and name not in LIKE_GRADIENTS
        and isinstance(value, (int, float, bool))
    }
    return _spec(member, tuple(sorted(arguments.items())))


@lru_cache(maxsize=256)
def _spec(member: type[Optimizer], arguments: tuple[tuple[str, Any], ...]) -> Optimizer | None:
    try:
        return member.model_validate(dict(arguments))
    except ValidationError:
        return None
