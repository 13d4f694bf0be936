"""New steps: how much further off a step may be than the steps that its machine was fitted to.

As `simdp.studies.validate.novelty` for collectives: a model that no constant was fitted to has
another share of its step beside which gradients travel, and other work on the host; more nodes
share switches. It shows where a step waits for the network, and so a spread is that of the part of
a step that communication leaves exposed. `SPREAD` is from the points of ``scenarios/validation``
that no constant was fitted to (``python -m benchmarks.new_steps`` finds them again).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import hypot
from typing import Any

from simdp.cluster.device import DEVICES
from simdp.engine.compute.profile_times import is_measured_on
from simdp.reports.captions import model_name
from simdp.scenario import Scenario
from simdp.studies.validate.intervals import Interval, Known, interval
from simdp.studies.validate.novelty import tables_of, widened
from simdp.studies.validate.unmeasured import is_unmeasured, with_pool
from simdp.workload.compute.profile import FromProfile

SPREAD = {
    "model": 0.21,
    "nodes": 0.16,
    "network": 0.35,
    "device": 0.21,
    "precision": 0.21,
    "cluster": 0.6,
}
"""Standard deviations of the logarithm of a step, for a step that is all exposed communication.
``model``: 279 points of 3 clusters without RDMA and NVLink, ResNet-18 and YOLOv3. ``nodes`` and
``network``: as of large collectives, since the steps at hand (27 of one cluster, which need 0.1;
and 5 that hide all they send) tell less. ``device`` and ``precision``, which change how long
gradients have to travel beside, as a model does: as of a model. ``cluster``: beside the spread of
the pool's shares, of 1,050 steps of 19 sites, each predicted without its own."""

LEAST = 0.03
"""The same of what is new, however little of the step is communication: of 131 points of 14
clusters with a new model, which wait 1 % of their steps, 95 % lie inside with it."""


SOFTWARE = {"cluster": 0.055, "device": 0.055}
"""The same where the whole cluster is new, or its devices: hooks, launches, jitter and what kernels
take from each other make steps of boxes with NVLink 5 to 6 % longer than a cluster that is written
by hand."""

BY_DATA_SHEET = 0.24
"""Standard deviation of the logarithm of compute that the catalogue's figures tell alone: of 67
steps of MPT, 125M to 30B, on 8 A100 or H100 (scenarios/validation/mosaic), samples of 512 to 65,536
tokens, by catalogue devices in place of that machine's."""


def steps_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """Models, and on how many nodes each, to whose steps constants were fitted."""
    found: dict[str, list[int]] = {}
    for one in known:
        for model, nodes in one.calibration.steps.items():
            found.setdefault(model, []).extend(nodes)
    return found


def what_is_new(
    steps: Mapping[str, Sequence[int]], model: str, num_nodes: int, world_size: int
) -> tuple[str, ...]:
    """Tell what a prediction has that no fitted step had; keys of `SPREAD`.

    Parameters
    ----------
    steps : mapping of str to sequence of int
        As from `steps_of`; one without any tells nothing.
    model : str
        What is trained.
    num_nodes, world_size : int
        On how many nodes and ranks; one rank has nothing new.
    """
    if not steps or world_size == 1:
        return ()
    everywhere = {nodes for each in steps.values() for nodes in each}
    new = [] if model in steps else ["model"]
    return (*new, *more_nodes(steps.get(model) or everywhere, everywhere, num_nodes))


def more_nodes(seen: Collection[int], everywhere: Collection[int], num_nodes: int) -> list[str]:
    """Whether there are more nodes than constants were fitted to, or a network where none was.

    Parameters
    ----------
    seen, everywhere : collection of int
        Numbers of nodes of what is like the prediction, and of all that was fitted.
    num_nodes : int
        Of the prediction.
    """
    if not everywhere:
        return []
    if num_nodes > 1 and max(everywhere) == 1:
        return ["network"]
    return ["nodes"] if num_nodes > max(seen) else []


def new_of(scenario: Scenario, known: Sequence[Known]) -> tuple[str, ...]:
    """As `what_is_new`, of a scenario's step."""
    cluster = scenario.cluster
    if cluster.world_size == 1:
        return ()
    if is_unmeasured(known):
        return ("cluster",)
    if steps := steps_of(known):
        name = name_of(scenario)
        new = list(what_is_new(steps, name, cluster.num_nodes, cluster.world_size))
    else:  # of the network tables of collectives tell as much
        tables = {nodes for each in tables_of(known).values() for nodes in each}
        new = more_nodes(tables, tables, cluster.num_nodes)
    new += ["device"] * any("device" in one.replaced for one in known)
    new += ["precision"] * has_new_precision(scenario, known)
    return tuple(new)


def precision_of(scenario: Scenario) -> str:
    """The dtype that products of a scenario's step are computed in."""
    workload = scenario.workload
    return workload.precision.low or workload.dtype


def has_new_precision(scenario: Scenario, known: Sequence[Known]) -> bool:
    """Whether constants were fitted to steps, and to none of this precision."""
    fitted = {dtype for one in known for dtype in one.calibration.precisions}
    return bool(fitted) and precision_of(scenario) not in fitted


def name_of(scenario: Scenario) -> str:
    """Name the model that a scenario trains."""
    return model_name({"model": scenario.workload.model.model_dump(mode="json")})


def further(new: Sequence[str], exposed: float) -> float:
    """Standard deviation of the logarithm that new things add to a step's time.

    Parameters
    ----------
    new : sequence of str
        As from `what_is_new`.
    exposed : float
        The part of the step that communication takes which no compute hides, from 0 to 1.
    """
    return hypot(*(max(SPREAD[each] * exposed, SOFTWARE.get(each, LEAST)) for each in new))


def step_interval(
    metrics: Mapping[str, Any],
    scenario: Scenario,
    known: Sequence[Known],
    seconds: Callable[[Sequence[Scenario]], Sequence[float]],
) -> Interval:
    """Find the 90 % interval of a step's time [s].

    Parameters
    ----------
    metrics : mapping
        Of the step.
    scenario, known, seconds
        As `simdp.studies.validate.intervals.interval` has them.
    """
    time = float(metrics["step_time_s"])
    known = with_pool(known, scenario)
    found = interval(time, scenario, known, seconds)
    return widened(time, found, deviation(metrics, scenario, known))


def deviation(metrics: Mapping[str, Any], scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by all that its constants' intervals do not hold.

    Parameters
    ----------
    metrics, scenario
        As for `step_interval`.
    known : sequence of Known
        With what the pool knows.
    """
    more = further(new_of(scenario, known), exposed_part(metrics, scenario))
    return hypot(more, by_data_sheet(metrics, scenario, known), by_scaling(metrics, scenario))


def by_data_sheet(metrics: Mapping[str, Any], scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by compute that nobody has measured.

    Of devices of the catalogue; those that a scenario describes itself are as it says. What a
    device reaches in one precision tells no more of another than its data sheet.
    """
    of_devices = any("cluster.device" in key for one in known for key in one.calibration.intervals)
    names = {device.name for device in scenario.cluster.devices()}
    fitted = of_devices and not has_new_precision(scenario, known)
    told = scenario.workload.compute.kind != "roofline" or fitted
    time = float(metrics["step_time_s"])
    if not known or told or not names & set(DEVICES.names()) or not time:
        return 0.0
    return BY_DATA_SHEET * float(metrics["compute_s"] + metrics["update_s"]) / time


def by_scaling(metrics: Mapping[str, Any], scenario: Scenario) -> float:
    """Standard deviation of a step's logarithm by compute that was measured on another device.

    What a kernel reaches of one device's figures, it may reach more or less of on another: both
    ends of the ratio are off as data sheets are.
    """
    time = float(metrics["step_time_s"])
    if not is_scaled(scenario):
        return 0.0
    compute = float(metrics["compute_s"] + metrics["update_s"])
    return BY_DATA_SHEET * compute / time if time else 0.0


def is_scaled(scenario: Scenario) -> bool:
    """Whether compute was measured, but on another device."""
    spec = scenario.workload.compute
    return isinstance(spec, FromProfile) and not all(
        is_measured_on(spec, each) for each in scenario.cluster.devices()
    )


def exposed_part(metrics: Mapping[str, Any], scenario: Scenario) -> float:
    """The part of a step that communication adds to it, from 0 to 1.

    It is what no compute hides; and of what compute hides, the time by which it is longer than
    without: while both are under way, compute takes ``1 + compute_slowdown`` times as long.
    """
    time = float(metrics["step_time_s"])
    if not time:
        return 0.0
    slowdown = scenario.cluster.overheads.compute_slowdown
    exposed, waited = float(metrics["exposed_comm_s"]), float(metrics["wait_s"])
    hidden = max(float(metrics["comm_s"]) - exposed, 0.0)
    stretched = hidden * slowdown / (1.0 + slowdown)
    return min((exposed + waited + stretched) / time, 1.0)
