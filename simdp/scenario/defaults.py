"""Defaults that need several parts of a scenario, or depend on what its file does not say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdp.cluster import Cluster
from simdp.cluster.device import DEVICES
from simdp.collectives import Collectives
from simdp.errors import ScenarioError
from simdp.workload import Workload
from simdp.workload.losses import LOSSES, Loss

if TYPE_CHECKING:
    from simdp.scenario.root import Scenario

Raw = dict[str, Any]

FEW_STEPS, SOME_STEPS = 2, 8
"""Steps of a run of times alone that does not say how long it is: one to warm up and a steady one;
and more where steps differ by chance."""


def without_data(data: Any) -> Any:
    """Let a job of times alone do without a data set; anything else comes back as it is."""
    if not isinstance(data, Mapping) or data.get("numerics") is not False:
        return data
    workload = data.get("workload")
    if not isinstance(workload, Mapping) or workload.get("dataset") is not None:
        return data
    return {**data, "workload": {**workload, "dataset": "none"}}


def filled(scenario: Scenario, written: Raw, base: Path) -> Scenario:
    """Fill in what follows from several parts together, where nobody says it.

    Parameters
    ----------
    scenario : Scenario
        Valid.
    written : dict
        The same as plain data, with what its machine brings.
    base : Path
        Folder that relative paths start from.
    """
    workload, found = scenario.workload, dict[str, Any]()
    if _charges_as_nccl(scenario, written):
        found["collectives"] = Collectives.model_validate({"cost": "nccl"})
    changed: dict[str, Any] = {}
    loss = _usual_loss(workload)
    if loss is not None:
        changed["loss"] = loss
    if _repeats_itself(scenario):
        with suppress(ScenarioError):  # of a file, which its own checks report
            changed |= _few_steps(scenario, base)
    if changed:
        found["workload"] = workload.model_copy(update=changed)
    return scenario.model_copy(update=found) if found else scenario


def _charges_as_nccl(scenario: Scenario, written: Raw) -> bool:
    """Whether NCCL's own model is to time collectives, of which the file says nothing.

    A ring that is played over links goes through one network card of a node; NCCL uses all.
    """
    inter = scenario.cluster.inter_node
    silent = not written.get("collectives") and not scenario.neighbours
    silent = silent and not any(key.split(".")[0] == "collectives" for key in scenario.sweep)
    many = inter is not None and inter.links_per_node > 1
    return silent and many and _is_nvidia(scenario.cluster)


def _is_nvidia(cluster: Cluster) -> bool:
    """Whether all devices are of the catalogue, which has NVIDIA's."""
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    return all(device.name in DEVICES.names() for device in devices)


def _usual_loss(workload: Workload) -> Loss | None:
    """What a model without data learns from, as its usual data set would have it."""
    model = workload.model
    if workload.loss.kind != "none" or workload.dataset.kind != "none" or model.timed:
        return None
    if workload.compute.without_data:
        return None
    shapes = model.input_shapes()
    images = any(shape is not None and len(shape) == 3 for shape in shapes.values())
    classes = images or any(model.num_tokens(name) is not None for name in shapes)
    return LOSSES["cross_entropy" if classes else "mse"].model_validate({})


def _repeats_itself(scenario: Scenario) -> bool:
    """Whether an epoch of times alone is more of the same, of which a few steps are enough."""
    workload, strategy, cluster = scenario.workload, scenario.strategy, scenario.cluster
    if scenario.numerics or workload.dataset.kind == "none":
        return False
    swept = {"numerics", "workload.steps", "workload.epochs", "workload"} & set(scenario.sweep)
    if workload.steps is not None or workload.epochs is not None or swept:
        return False
    if workload.input is not None or workload.samples_per_rank or workload.inject:
        return False
    if any(straggler.kind == "pause" for straggler in cluster.stragglers):
        return False
    late = getattr(getattr(strategy, "comm_hook", None), "start_step", 0)
    return strategy.player == "together" and not hasattr(strategy, "local_steps") and not late


def _few_steps(scenario: Scenario, base: Path) -> dict[str, int]:
    """How many steps to simulate; nothing where an epoch has no more."""
    workload, cluster = scenario.workload, scenario.cluster
    drawn = any(straggler.kind == "lognormal" for straggler in cluster.stragglers)
    steps = SOME_STEPS if drawn or workload.lengths(scenario.seed, base) else FEW_STEPS
    longer = workload.dataset.length(base) > steps * workload.samples_per_step(cluster.world_size)
    return {"steps": steps} if longer else {}
