"""Options of a workload that cannot be combined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simdp.workload.compute import Compute
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.precision import ScalerSettings
from simdp.workload.schedules.base import Schedule

NEED_NUMBERS = ("weights", "group_by_length", "sync_batchnorm", "inject", "attention", "packing")
NEED_LAYERS = ("quantized", "lora", "frozen")
NEED_KERNELS = ("compile", "cuda_graphs")
NOT_RECORDED = (*NEED_NUMBERS, *NEED_LAYERS, "compile")
OF_RECOMPUTE = {"recompute_share": 1.0, "use_reentrant": False}
NEED_SAMPLES = ("samples_per_rank", "shuffle", "drop_last", "epochs")


def incompatible_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Errors of keys of a workload that do not fit its model, by key."""
    model, dataset, loss, compute = (given[key] for key in ("model", "dataset", "loss", "compute"))
    no_data, there = dataset.kind == "none", dataset.has_samples
    idle = {} if there else {key: _no_samples(key) for key in NEED_SAMPLES if given[key]}
    idle |= _schedule(given["lr_schedule"], given["optimizer"], given["lr_scaling"], not there)
    if given["quantized"] is not None and given["weights"] is not None:
        idle["weights"] = "weights in 4 bits have times but no numbers; leave this out."
    if given["recompute"] == "none":
        why = "recompute: none runs nothing again; leave this out, or set recompute: blocks."
        idle |= {key: why for key, usual in OF_RECOMPUTE.items() if given[key] != usual}
    if compute.source != "roofline":
        # A profile may separate the host's time, which a CUDA graph reduces.
        held = NEED_KERNELS if compute.source != "profile" else ("compile",)
        idle |= {key: _no_kernels(compute.kind) for key in held if given[key]}
    if given["host"].async_launch and (compute.source != "roofline" or given["cuda_graphs"]):
        why = f"compute: {compute.kind} includes" if compute.source != "roofline" else ""
        why = why or "a CUDA graph has none of"
        idle["host"] = (
            f"async_launch models the launches of single kernels; {why} these; leave it out."
        )
    if compute.runs_eagerly and (given["compile"] or model.recorded):
        why = "compile fuses these" if given["compile"] else "a recording contains these"
        idle["compute"] = f"kernels: torch adds the kernels of eager torch; {why}; leave it out."
    if model.recorded:
        return idle | _recorded(given)
    if not model.timed:
        return _without_times(model.kind, no_data, loss.kind, compute) or idle
    why = f"the model {model.kind} has times but no numbers"
    found = {key: f"{why}; leave this out." for key in NEED_NUMBERS + NEED_LAYERS if given[key]}
    if loss.kind != "none":
        found["loss"] = f"{why}; leave the loss out."
    if getattr(dataset, "lengths", None) is not None:
        found["dataset"] = f"{why}, independent of its samples' lengths; leave lengths out."
    if compute.source == "roofline" or (compute.source == "measured" and model.brings_times):
        needs = (
            "needs layers with FLOPs" if compute.source == "roofline" else "spreads a step's time"
        )
        found["compute"] = (
            f"{compute.kind} {needs}, but the model {model.kind} has times of its own; "
            "write profile, or leave this out."
        )
    return found | idle


def _recorded(given: Mapping[str, Any]) -> dict[str, str]:
    """Errors of keys that do not fit a model of recorded kernels."""
    why = f"the model {given['model'].kind} has kernels but no numbers"
    found = {key: f"{why}; leave this out." for key in NOT_RECORDED if given[key]}
    if given["loss"].kind != "none":
        found["loss"] = f"{why}, and its loss is among them; leave the loss out."
    if given["compute"].source == "profile":
        found["compute"] = f"{why}, nor times; write roofline, or measured."
    if given["dataset"].kind != "none" or given["dataset"].has_samples:
        found["dataset"] = f"{why}, of samples as they were recorded; leave the dataset out."
    return found


def _without_times(model: str, no_data: bool, loss: str, compute: Compute) -> dict[str, str]:
    found = {}
    if compute.source == "profile":
        found["compute"] = (
            f"the model {model} has no times of its own; write roofline, or a model of kind "
            "profile."
        )
    if loss == "none" and not no_data:
        found["loss"] = f"the model {model} needs one for training; write for example mse."
    return found


def _schedule(
    schedule: Schedule, optimizer: Optimizer, scaling: str, no_data: bool
) -> dict[str, str]:
    """Errors of the schedule in combination with the optimizer, scaling and dataset."""
    found = {}
    if scaling != "none" and not schedule.takes_base:
        found["lr_scaling"] = (
            f"the schedule {schedule.kind} has rates of its own, independent of the optimizer's; "
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
        found["lr_schedule"] = "per epoch: there is no dataset to iterate over; count steps."
    return found


def _no_kernels(compute: str) -> str:
    return f"the times of compute: {compute} include it already; write false, or compute: roofline."


def _no_samples(key: str) -> str:
    instead = "write steps" if key == "epochs" else "leave this out"
    return f"there is no dataset to iterate over; {instead}, or add a dataset."


# Inference ----------------------------------------------------------------------------------------

IDLE = {
    "lr_scaling": "none",
    "recompute": "none",
    **OF_RECOMPUTE,
    "keeps_outputs": True,
    "clip_grad_norm": None,
    "norm_type": 2.0,
    "clip_grad_value": None,
    "grad_accum": 1,
    "inject": (),
    "frozen": (),
    "lora": None,
    "quantized": None,
    "sync_batchnorm": False,
    "gradient_noise": False,
}
"""Keys that only training uses, and their defaults."""


def for_training_only(given: Mapping[str, Any]) -> dict[str, str]:
    """Errors of keys of a workload that inference would ignore, by key."""
    found = [key for key in ("optimizer", "lr_schedule") if given[key].kind != "none"]
    found += [key for key, idle in IDLE.items() if given[key] != idle]
    if any(getattr(given["precision"], name, None) for name in ScalerSettings._fields):
        found.append("precision")
    return {key: f"mode: inference {_why(key)}; leave {_what(key)} out." for key in found}


def _why(key: str) -> str:
    if key == "sync_batchnorm":
        return "normalises by running statistics, which all ranks have"
    if key == "precision":
        return "has no loss to scale"
    return "trains nothing"


def _what(key: str) -> str:
    return "the keys of the loss scale" if key == "precision" else "this"
