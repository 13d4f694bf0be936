"""What does not fit a model that has times but no numbers, or one that has none of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEED_NUMBERS = ("weights", "group_by_length", "sync_batchnorm", "inject")
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
    if not model.timed:
        return _without_times(model.kind, dataset.kind, loss.kind, compute)
    why = f"the model {model.kind} has times but no numbers"
    found = {key: f"{why}; leave this out." for key in NEED_NUMBERS if given[key]}
    if loss.kind != "none":
        found["loss"] = f"{why}; leave the loss out."
    if compute != "profile":
        found["compute"] = (
            f"{compute} needs layers with FLOPs, but the model {model.kind} brings its times; "
            "write profile, or leave this out."
        )
    if dataset.kind == "none":
        found |= {key: _no_samples(key) for key in NEED_SAMPLES if given[key]}
    return found


def _without_times(model: str, dataset: str, loss: str, compute: str) -> dict[str, str]:
    found = {}
    if compute == "profile":
        found["compute"] = (
            f"the model {model} has no times of its own; write roofline, or a model of kind "
            "profile."
        )
    if dataset == "none":
        found["dataset"] = f"the model {model} needs samples; name a data set, such as regression."
    elif loss == "none":
        found["loss"] = f"the model {model} needs one to learn from; write for example mse."
    return found


def _no_samples(key: str) -> str:
    instead = "write steps" if key == "epochs" else "leave this out"
    return f"there is no data set to go through; {instead}, or add a dataset."
