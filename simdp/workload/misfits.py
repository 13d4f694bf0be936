"""What does not fit a model that has times but no numbers, or one that has none of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simdp.workload.compute import Compute
from simdp.workload.optimizers import Optimizer
from simdp.workload.schedules import Schedule

NEED_NUMBERS = ("weights", "group_by_length", "sync_batchnorm", "inject", "attention")
NEED_KERNELS = ("compile", "cuda_graphs")
NEED_SAMPLES = ("samples_per_rank", "shuffle", "drop_last", "epochs")


def misfits(given: Mapping[str, Any]) -> dict[str, str]:
    """Say which keys of a workload do not suit its model.

    Parameters
    ----------
    given : mapping of str to value
        The workload's fields.

    Returns
    -------
    dict of str to str
        What is wrong with each of those keys.
    """
    model, dataset, loss, compute = (given[key] for key in ("model", "dataset", "loss", "compute"))
    no_data = dataset.kind == "none"
    idle = {key: _no_samples(key) for key in NEED_SAMPLES if given[key]} if no_data else {}
    idle |= _schedule(given["lr_schedule"], given["optimizer"], given["lr_scaling"], no_data)
    if compute.kind != "roofline":
        idle |= {key: _no_kernels(compute.kind) for key in NEED_KERNELS if given[key]}
    if not model.timed:
        return _without_times(model.kind, no_data, loss.kind, compute) or idle
    why = f"the model {model.kind} has times but no numbers"
    found = {key: f"{why}; leave this out." for key in NEED_NUMBERS if given[key]}
    if loss.kind != "none":
        found["loss"] = f"{why}; leave the loss out."
    if compute.kind == "roofline" or (compute.kind == "measured" and model.brings_times):
        needs = "needs layers with FLOPs" if compute.kind == "roofline" else "spreads a step's time"
        found["compute"] = (
            f"{compute.kind} {needs}, but the model {model.kind} brings its times; "
            "write profile, or leave this out."
        )
    return found | idle


def _without_times(model: str, no_data: bool, loss: str, compute: Compute) -> dict[str, str]:
    found = {}
    if compute.kind == "profile":
        found["compute"] = (
            f"the model {model} has no times of its own; write roofline, or a model of kind "
            "profile."
        )
    if loss == "none" and not no_data:
        found["loss"] = f"the model {model} needs one to learn from; write for example mse."
    return found


def _schedule(
    schedule: Schedule, optimizer: Optimizer, scaling: str, no_data: bool
) -> dict[str, str]:
    """What is wrong between the schedule and what it changes."""
    found = {}
    if scaling != "none" and not schedule.takes_base:
        found["lr_scaling"] = (
            f"the schedule {schedule.kind} has rates of its own, whatever the optimizer's is; "
            "scale those instead, and leave this out."
        )
    momentum = schedule.momentum(1)
    groups = [group.arguments for group in optimizer.param_groups or ()]
    treated = [optimizer, *(optimizer.model_copy(update=group) for group in groups)]
    if momentum is not None and any(each.momentum_of() is None for each in treated):
        found["lr_schedule"] = (
            f"{schedule.kind} changes the momentum, but the optimizer {optimizer.kind} has none; "
            f"write cycle_momentum: false, or momentum: {momentum:g} for an optimizer that has it."
        )
    if no_data and "epoch" in schedule.counted():
        found["lr_schedule"] = "per epoch: there is no data set to go through; count steps."
    return found


def _no_kernels(compute: str) -> str:
    return f"compute: {compute} has times that hold it already; write false, or compute: roofline."


def _no_samples(key: str) -> str:
    instead = "write steps" if key == "epochs" else "leave this out"
    return f"there is no data set to go through; {instead}, or add a dataset."
