"""Remarks on a result: caveats of its hardware and of its timing."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.cluster.hardware import OLD_NAMES, Calibration, is_file, read_machine
from simdp.cluster.stragglers import SlowNode, SlowRank
from simdp.errors import ScenarioError
from simdp.scenario.machines import not_by_nccl, of_catalogue
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario

UNDETERMINED = "undetermined"

HARDWARE = ("device", "topology", "link", "inter_node")
"""Keys of a cluster's hardware."""


def remarks(scenario: Scenario) -> dict[str, str]:
    """Describe the reliability of a point's hardware figures.

    Returns
    -------
    dict of str to str
        A line each, by topic: ``calibration``, always; ``undetermined``, constants that the
        measurements do not determine; ``collectives``, the source of their times; ``caveats``,
        unusual properties of the machine; ``machine``, its current name; ``job``, keys that a run
        ignores.
    """
    found: dict[str, str] = {}
    for straggler in scenario.cluster.stragglers:
        if isinstance(straggler, SlowRank | SlowNode) and straggler.factor < 1:
            factor, node = straggler.factor, straggler.on_node()
            who = f"node {node}" if node is not None else f"rank {straggler.on_rank()}"
            found["straggler"] = (
                f"{who} is the fastest: a factor below 1 takes less time; for "
                f"{factor:.0%} of the speed write factor: {1 / factor:.3g}"
            ).replace("%", " %")
    asked = {
        "cluster.failures": bool(scenario.cluster.failures),
        "checkpoint": scenario.checkpoint is not None,
        "recovery": scenario.recovery is not None,
    }
    if any(asked.values()):
        keys = ", ".join(key for key, is_given in asked.items() if is_given)
        found["job"] = f"{keys}: not in this run; python -m simdp job plays them"
    found |= _of_machine(scenario)
    known = calibration_of(scenario)
    how = _how_timed(scenario, known is not None)
    if known is None:
        found["calibration"] = "none: nobody has measured this hardware"
        return found | how
    of_devices = any(key.startswith("cluster.device") for key in known.intervals)
    by_peak = scenario.workload.compute.source == "roofline" and not of_devices
    what = "network calibrated, compute by its data sheet" if by_peak else "calibrated"
    found["calibration"] = f"{scenario.cluster.machine}: {what}"
    if own := replaced_keys(scenario.cluster, scenario.base):
        found["calibration"] += f", but {' and '.join(own)} are the scenario's own"
    found |= how
    left_open = [note for note in known.notes if _leaves_open(note)]
    if left_open and scenario.cluster.world_size > 1:
        found[UNDETERMINED] = "; ".join(_without_lead(note) for note in left_open)
    return found


def _of_machine(scenario: Scenario) -> dict[str, str]:
    """Return unusual properties of a scenario's machine, and its current name."""
    name, found = scenario.cluster.machine, dict[str, str]()
    if name is None:
        return found
    if name in OLD_NAMES:
        found["machine"] = f"{name} is now called {OLD_NAMES[name]}; write that name"
    with suppress(ScenarioError):  # a file that was there when the scenario was read
        if caveats := read_machine(name, scenario.base).caveats:
            found["caveats"] = " ".join(caveats)
    return found


def _how_timed(scenario: Scenario, is_calibrated: bool) -> dict[str, str]:
    """Describe the source of the times of a scenario's collectives."""
    groups = [name for several in scenario.program.groups for name in several.collectives]
    called = dict.fromkeys([*(name for name, _ in scenario.calls()), *groups])
    collectives, cluster = scenario.collectives, scenario.cluster
    if cluster.world_size == 1 or not called:
        return {}
    simulated = [name for name in called if not collectives.cost_of(name).timed]
    said = []
    if simulated:
        by = ", ".join(f"{name}: {getattr(collectives, name).kind}" for name in simulated)
        said.append(f"simulated over the links ({by})")
        among_jobs = bool(scenario.neighbours)
        reason = not_by_nccl(cluster, scenario.strategy, among_jobs)
        if reason and of_catalogue(cluster) and not collectives.cost.timed:
            said.append(f"NCCL's own model is not the default here: {reason}")
    if len(simulated) < len(called):
        others = "others: " if simulated else ""
        said.append(others + _by_cost(scenario, is_calibrated))
    return {"collectives": "; ".join(said)}


def _by_cost(scenario: Scenario, is_calibrated: bool) -> str:
    """Describe a cost that gives times, with the source of its constants."""
    from simdp.collectives.costs.nccl import NcclCost  # few runs need it

    wiring, cost = wiring_of(scenario.cluster), scenario.collectives.cost
    if not isinstance(cost, NcclCost):
        return f"a measured table ({getattr(cost, 'path', cost.kind)})"
    if is_calibrated:
        return f"NCCL's own model, with constants of {scenario.cluster.machine}"
    classes = []
    if wiring.local_size > 1:
        classes.append(cost.peer or wiring.peer)
    if wiring.num_nodes > 1:
        classes.append(cost.network or wiring.network)
    return (
        f"NCCL's own model, with what clusters of this class reach ({', '.join(classes)}: "
        "simdp list constants)"
    )


def replaced_keys(cluster: Cluster, base: Path) -> list[str]:
    """Return parts of the hardware in which a cluster differs from its machine's entry.

    ``base`` is the folder that the path of a machine's file starts from.
    """
    if cluster.machine is None:
        return []
    sizes = cluster.world_size, cluster.devices_per_node
    if is_file(cluster.machine):
        pure = _pure(cluster.machine, base, *sizes)
    else:
        pure = _pure_of_catalogue(cluster.machine, *sizes)
    if pure is None:
        return []
    return [key for key in HARDWARE if getattr(pure, key) != getattr(cluster, key)]


def _pure(name: str, base: Path, world_size: int, devices_per_node: int | None) -> Cluster | None:
    """Return a machine's cluster of a size, or of another one if that needs other keys."""
    brought = read_machine(name, base).cluster
    sizes = {"world_size": world_size, "devices_per_node": devices_per_node}
    return _cluster({**brought, **sizes}, base) or _cluster(brought | {"world_size": 1}, base)


@lru_cache(maxsize=64)
def _pure_of_catalogue(name: str, world_size: int, devices_per_node: int | None) -> Cluster | None:
    return _pure(name, Path(), world_size, devices_per_node)


def _cluster(raw: dict[str, Any], base: Path) -> Cluster | None:
    """Build a cluster; None if other sizes need other keys."""
    try:
        return Cluster.model_validate(raw, context={"base": base})
    except ValidationError:
        return None


def replaced_parts(cluster: Cluster, base: Path) -> tuple[str, ...]:
    """Return used parts of a cluster that differ from its machine.

    Returns
    -------
    tuple of str
        ``intra``, links inside a node; ``inter``, links between nodes; ``device``.
    """
    keys, found = replaced_keys(cluster, base), []
    if cluster.local_size > 1 and not {"link", "topology"}.isdisjoint(keys):
        found.append("intra")
    if cluster.num_nodes > 1 and "inter_node" in keys:
        found.append("inter")
    if "device" in keys:
        found.append("device")
    return tuple(found)


def calibration_of(scenario: Scenario) -> Calibration | None:
    """Return the calibration of a scenario's machine; None if nothing was fitted."""
    name = scenario.cluster.machine
    if name is None:
        return None
    try:
        return read_machine(name, scenario.base).calibration
    except ScenarioError:  # a file that was there when the scenario was read
        return None


def _leaves_open(note: str) -> bool:
    return note.startswith("not determined") or "fits as well" in note or "fit as well" in note


def _without_lead(note: str) -> str:
    lead, colon, rest = note.partition(": ")
    return rest if colon and lead.startswith("not determined") else note
