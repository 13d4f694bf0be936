"""Settled: steps of an optimizer that do what an earlier one did, and are not watched again.

The mode through which operators go costs more than small operators do. What it would find out
of a step is known once a step has made no new state: the same tensors are read and written, on the
same devices, and what lies there for a moment takes as much memory as before.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from simdp.torch.cuda.machine import Machine
from simdp.torch.cuda.tags import PLAIN


class Step(NamedTuple):
    """What is known of an optimizer's step.

    Attributes
    ----------
    parameters : tuple of int
        Those with gradients, by their identity.
    settings : tuple of bool
        Which of the groups' settings are on.
    state : int
        Tensors of state before it.
    """

    parameters: tuple[int, ...]
    settings: tuple[bool, ...]
    state: int


class Watch(NamedTuple):
    """A step that is watched, and each device's bytes before it: now and at most."""

    step: Step
    before: list[tuple[int, int]]


_KNOWN: WeakKeyDictionary[Any, tuple[Step, list[int]]] = WeakKeyDictionary()
"""Of each optimizer the last step that made no state, and what it took of each device for a while
[bytes]."""


def begin(optimizer: Any, here: Machine) -> Any:
    """Watch a step, or do not if it is known; returns what `end` wants back."""
    mode = _get_current_dispatch_mode()
    if here.fake or getattr(mode, "machine", None) is not here or not _is_torchs(optimizer):
        return None
    step = _step(optimizer)
    ledgers = [device.ledger for device in here.devices]
    known = _KNOWN.get(optimizer)
    if known is not None and known[0] == step:
        for ledger, nbytes in zip(ledgers, known[1], strict=True):
            ledger.take(nbytes)
            ledger.give(nbytes)
        return _pop_mode()
    before = [(ledger.allocated, ledger.peak) for ledger in ledgers]
    for ledger in ledgers:
        ledger.peak = ledger.allocated
    return Watch(step, before)


def end(optimizer: Any, here: Machine, begun: Any) -> None:
    """Come to the end of a step."""
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
        _KNOWN[optimizer] = begun.step, extra


def _is_torchs(optimizer: Any) -> bool:
    """Whether nothing but torch's own code runs in a step, on plain tensors."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if len(optimizers._global_optimizer_pre_hooks) > 1:  # ours
        return False
    if len(optimizers._global_optimizer_post_hooks) > 1:
        return False
    return all(type(one) in PLAIN for group in optimizer.param_groups for one in group["params"])


def _step(optimizer: Any) -> Step:
    groups = optimizer.param_groups
    given = [one for group in groups for one in group["params"]]
    parameters = tuple(id(one) for one in given if one.grad is not None)
    settings = tuple(
        bool(value) for group in groups for name, value in group.items() if name != "params"
    )
    return Step(parameters, settings, _num_state(optimizer))


def _num_state(optimizer: Any) -> int:
    kept = (value for state in optimizer.state.values() for value in state.values())
    return sum(isinstance(value, torch.Tensor) for value in kept)
