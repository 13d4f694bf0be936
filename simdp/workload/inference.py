"""What has no meaning where nothing is learned: ``mode: inference``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simdp.workload.precision.scaler import ScalerSettings

IDLE = {
    "lr_scaling": "none",
    "recompute": "none",
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
"""Keys that only training reads, and what they are when they are left out."""


def for_training_only(given: Mapping[str, Any]) -> dict[str, str]:
    """Say which keys of a workload inference would ignore.

    Parameters
    ----------
    given : mapping of str to value
        The workload's fields.

    Returns
    -------
    dict of str to str
        What is wrong with each of those keys.
    """
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
    return "learns nothing"


def _what(key: str) -> str:
    return "the keys of the loss scale" if key == "precision" else "this"
