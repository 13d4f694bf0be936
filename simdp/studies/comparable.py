"""Comparable points: every strategy sees the samples of a step that the others see.

What a scenario gives per rank becomes a batch of all ranks, and `Single` has it on one device.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from simdp.errors import ScenarioError
from simdp.results.comparison import written
from simdp.scenario.measured import world_size
from simdp.scenario.overrides import Raw, set_key
from simdp.spec import one_of
from simdp.strategies import STRATEGIES
from simdp.workload.models import MODEL

ONE_DEVICE = "single"
"""The strategy that trains on one device."""

STRATEGY = one_of("strategy", STRATEGIES, default="ddp")
"""What a strategy's name or mapping stands for."""

_LISTS = ("cluster.device", "cluster.topology", "cluster.link", "cluster.inter_node.link")
"""Keys that may list a value per rank or node; one device has the first."""


def kind_of(raw: Raw) -> str | None:
    """The strategy of a scenario as plain data; None where it names none."""
    try:
        return str(STRATEGY.expand(raw.get("strategy", "ddp"))["kind"])
    except PydanticCustomError:
        return None


def keep_options(raw: Raw, points: Sequence[tuple[Raw, Raw]]) -> tuple[list[int], list[str]]:
    """Give the file's options to points that name its own strategy and nothing else.

    Parameters
    ----------
    raw : dict
        The scenario as plain data.
    points : sequence of (dict, dict)
        What each point sets, and its scenario as plain data, which may be changed.

    Returns
    -------
    list of int, list of str
        Which points that are, and a note for the reader.
    """
    own, kind = raw.get("strategy"), kind_of(raw)
    named = [chosen.get("strategy") for chosen, _ in points]
    if not isinstance(own, dict) or set(own) <= {"kind"} or not any(named):
        return [], []
    kept = [place for place, value in enumerate(named) if isinstance(value, str) and value == kind]
    for place in kept:
        points[place][1]["strategy"] = copy.deepcopy(own)
    options = ", ".join(f"{key}: {written(value)}" for key, value in own.items() if key != "kind")
    if kept:
        said = f"{kind} has the options that the file gives it, {options}; write {{kind: {kind}}}"
        return kept, [f"{said} for its defaults. Other strategies have theirs."]
    return [], [
        f"the file's options of {kind}, {options}, are left out: every value names its own."
    ]


def make_comparable(raw: Raw, several: bool) -> tuple[Raw, list[str]]:
    """Change a point so that it sees the samples of a step that the others see.

    Parameters
    ----------
    raw : dict
        The point's scenario as plain data; changed.
    several : bool
        Whether points differ in their strategy.

    Returns
    -------
    dict, list of str
        What was set, by dotted key, and notes for the reader.

    Raises
    ------
    ScenarioError
        If one device cannot see them.
    """
    changes: Raw = {}
    notes: list[str] = []
    n = world_size(raw)
    if several and n > 0:
        changes, notes = _one_batch(raw, n)
        notes += _remainder(raw, changes, n) + _sums(raw, n)
    if n > 1 and kind_of(raw) == ONE_DEVICE:
        found, said = _one_device(raw, n)
        changes, notes = {**changes, **found}, [*notes, *said]
    for key, value in changes.items():
        set_key(raw, key, value)
    return changes, notes


def _one_batch(raw: Raw, n: int) -> tuple[Raw, list[str]]:
    """Turn samples per rank into samples of all ranks, which every strategy can cut."""
    workload = raw.get("workload")
    if not isinstance(workload, dict) or workload.get("global_batch") is not None:
        return {}, []
    microbatch, accumulate = workload.get("microbatch"), workload.get("grad_accum", 1)
    for key in ("samples_per_rank", "grad_accum"):
        if isinstance(workload.get(key), list):
            return {}, [
                f"the batches are the scenario's own, since workload.{key} deals them out by rank; "
                "strategies that cut a global_batch cannot take them."
            ]
    if type(microbatch) is not int or type(accumulate) is not int:
        return {}, []  # which is wrong, and refused as such
    batch = microbatch * accumulate * n
    said = (
        f"every point trains on the same {batch} samples in a step: workload.global_batch: {batch} "
        f"in place of microbatch: {microbatch} on {n} ranks."
    )
    return {"workload.microbatch": None, "workload.global_batch": batch}, [said]


def _remainder(raw: Raw, changes: Raw, n: int) -> list[str]:
    """Say where ranks get different numbers of samples, which not all strategies weigh."""
    workload = raw.get("workload")
    written = workload.get("global_batch") if isinstance(workload, dict) else None
    batch = changes.get("workload.global_batch", written)
    if not isinstance(batch, int) or batch % n == 0:
        return []
    return [
        f"{batch} samples do not divide among {n} ranks: weights differ from one device's where "
        "every rank counts the same; weight_by_shard: true counts samples."
    ]


def _sums(raw: Raw, n: int) -> list[str]:
    """Say that a loss which is a sum is divided where gradients are averaged."""
    workload = raw.get("workload")
    loss = workload.get("loss") if isinstance(workload, dict) else None
    if n == 1 or not isinstance(loss, dict) or loss.get("reduction") != "sum":
        return []
    return [
        f"the loss is a sum, and averaged gradients are those of a {n}th of it: weights differ "
        "from one device's, unless weight_by_shard: true adds the sums up."
    ]


def _one_device(raw: Raw, n: int) -> tuple[Raw, list[str]]:
    """Give `Single` the one device that it trains on, and the node around it."""
    cluster, workload = raw["cluster"], raw.get("workload")
    workload = workload if isinstance(workload, dict) else {}
    micro_steps = workload.get("grad_accum", 1)
    if isinstance(micro_steps, list) and workload.get("global_batch") is None:
        raise ScenarioError(
            [
                f"workload.grad_accum: gives each of {n} ranks its samples, so that one device "
                "would train on fewer; give global_batch and a number of micro-steps instead."
            ]
        )
    changes: Raw = {"cluster.world_size": 1}
    if cluster.get("devices_per_node") is None:
        k = cluster.get("ranks_per_device", 1)
        changes["cluster.devices_per_node"] = -(-n // k) if type(k) is int and k > 0 else n
    for key in _LISTS:
        value: Any = raw
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, list) and value:
            changes[key] = value[0]
    notes = ["single runs on one device, cluster.world_size: 1."]
    is_timed = getattr(MODEL.member(workload.get("model")), "timed", False)
    if is_timed and isinstance(micro_steps, int):
        changes["workload.grad_accum"] = micro_steps * n
        notes.append(
            f"single takes {micro_steps * n} micro-batches in turn, workload.grad_accum, since the "
            "model's times are of one."
        )
    if workload.get("lr_scaling", "none") != "none":
        scaling = workload["lr_scaling"]
        notes.append(
            f"single learns at another rate, since lr_scaling: {scaling} counts 1 device, not {n}."
        )
    return changes, notes
