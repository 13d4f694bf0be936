"""New steps: how much further off a step may be than the steps that its machine was fitted to.

As `simdp.studies.validate.novelty` for collectives: a model that no constant was fitted to has
another share of its step beside which gradients travel, and other work on the host; more nodes
share switches. It shows where a step waits for the network, and so a spread is that of the part of
a step that communication leaves exposed. `SPREAD` is from the points of ``scenarios/validation``
that no constant was fitted to (``python -m benchmarks.new_steps`` finds them again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot
from typing import Any

from simdp.cluster.device import DEVICES
from simdp.engine.compute.profile_times import is_measured_on
from simdp.reports.captions import model_name
from simdp.scenario import Scenario
from simdp.studies.validate.intervals import Interval, Known, interval
from simdp.studies.validate.novelty import widened
from simdp.studies.validate.unmeasured import is_unmeasured, with_pool
from simdp.workload.compute.profile import FromProfile

SPREAD = {"model": 0.21, "nodes": 0.16, "network": 0.35, "cluster": 0.6}
"""Standard deviations of the logarithm of a step, for a step that is all exposed communication.
``model``: 279 points of 3 clusters without RDMA and NVLink, ResNet-18 and YOLOv3. ``nodes`` and
``network``: as of large collectives, since the steps at hand (27 of one cluster, which need 0.1;
and 5 that hide all they send) tell less. ``cluster``: beside the spread of the pool's shares, of
1,050 steps of 19 sites, each predicted without its own."""

LEAST = 0.03
"""The same of what is new, however little of the step is communication: of 131 points of 14
clusters with a new model, which wait 1 % of their steps, 95 % lie inside with it."""


SOFTWARE = {"cluster": 0.055}
"""The same where the whole cluster is new: hooks, launches, jitter and what kernels take from each
other make steps of boxes with NVLink 5 to 6 % longer than a cluster that is written by hand."""

BY_DATA_SHEET = 0.24
"""Standard deviation of the logarithm of compute that the catalogue's figures tell alone: of 67
steps of MPT, 125M to 30B, on 8 A100 or H100 (scenarios/validation/mosaic), samples of 512 to 65,536
tokens, by catalogue devices in place of that machine's."""


def steps_of(known: Sequence[Known]) -> dict[str, list[int]]:
    """Models, and on how many nodes each, to whose steps constants were fitted."""
    found: dict[str, list[int]] = {}
    for _, calibration in known:
        for model, nodes in calibration.steps.items():
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
    if num_nodes > 1 and max(everywhere) == 1:
        new.append("network")
    elif num_nodes > max(steps.get(model) or everywhere):
        new.append("nodes")
    return tuple(new)


def new_of(scenario: Scenario, known: Sequence[Known]) -> tuple[str, ...]:
    """As `what_is_new`, of a scenario's step."""
    if is_unmeasured(known):
        return ("cluster",)
    steps = steps_of(known)
    if not steps:
        return ()
    cluster = scenario.cluster
    return what_is_new(steps, name_of(scenario), cluster.num_nodes, cluster.world_size)


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
    more = further(new_of(scenario, known), exposed_part(metrics))
    more = hypot(more, by_data_sheet(metrics, scenario, known), by_scaling(metrics, scenario))
    return widened(time, found, more)


def by_data_sheet(metrics: Mapping[str, Any], scenario: Scenario, known: Sequence[Known]) -> float:
    """Standard deviation of a step's logarithm by compute that nobody has measured.

    Of devices of the catalogue; those that a scenario describes itself are as it says.
    """
    of_devices = (key for _, one in known for key in one.intervals if "cluster.device" in key)
    names = {device.name for device in scenario.cluster.devices()}
    told = scenario.workload.compute.kind != "roofline" or any(of_devices)
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


def exposed_part(metrics: Mapping[str, Any]) -> float:
    """The part of a step that communication takes which no compute hides, from 0 to 1."""
    time = float(metrics["step_time_s"])
    return (metrics["exposed_comm_s"] + metrics["wait_s"]) / time if time else 0.0
