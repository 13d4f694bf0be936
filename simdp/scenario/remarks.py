"""Remarks on a result: caveats of its hardware and of its timing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from simdp.cluster import Cluster
from simdp.cluster.hardware import LINKS, OLD_NAMES, Calibration, read_machine
from simdp.cluster.stragglers import SlowNode, SlowRank
from simdp.collectives import Collectives
from simdp.collectives.costs import Cost
from simdp.errors import ScenarioError
from simdp.scenario.defaults import (
    described,
    network_over_machine,
    not_by_nccl,
    of_catalogue,
    pure_cluster,
    shared_network,
)
from simdp.scenario.measured import MeasuredScenario, settings
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario

HARDWARE = ("device", "topology", "link", "inter_node")
"""Keys of a cluster's hardware."""

LINK_FIGURES = {
    "intra_alpha": "link.alpha",
    "peer": "link.transport",
    "inter_alpha": "inter_node.link.alpha",
    "network": "inter_node.link.transport",
}
"""Fields of a wiring that constants of a cost can replace, and keys that they follow from."""

TRIED_SIZES = (2.0**10, 2.0**20, 2.0**30)  # of a collective, to see what changes its time [bytes]


def remarks(scenario: Scenario) -> dict[str, str]:
    """Describe the reliability of a point's hardware figures.

    Returns
    -------
    dict of str to str
        A line each, by topic: ``calibration``, always; ``undetermined``, constants that the
        measurements do not determine; ``collectives``, the source of their times; ``caveats``,
        unusual properties of the machine; ``machine``, its current name; ``job``, keys that a run
        ignores; ``network``, keys of links and topologies that replace a machine's, and have
        another part in the times or none; ``NVLS``, the key that counts it.
    """
    return dict([*_of_run(scenario), *_of_machine(scenario), *_of_calibration(scenario)])


def _of_run(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Describe what a run takes otherwise than its keys suggest."""
    for straggler in scenario.cluster.stragglers:
        if isinstance(straggler, SlowRank | SlowNode) and straggler.factor < 1:
            factor, node = straggler.factor, straggler.on_node()
            who = f"node {node}" if node is not None else f"rank {straggler.on_rank()}"
            text = (
                f"{who} is the fastest: a factor below 1 takes less time; for "
                f"{factor:.0%} of the speed write factor: {1 / factor:.3g}"
            )
            yield "straggler", text.replace("%", " %")
    keys_of_job = {
        "cluster.failures": bool(scenario.cluster.failures),
        "checkpoint": scenario.checkpoint is not None,
        "recovery": scenario.recovery is not None,
    }
    if any(keys_of_job.values()):
        keys = ", ".join(key for key, is_given in keys_of_job.items() if is_given)
        yield "job", f"{keys}: not in this run; python -m simdp job plays them"
    layout = getattr(scenario.workload.compute, "memory_format", "")
    calls = scenario.workload.graph.calls
    if layout == "channels_last" and any(c.layer.family == "convolutional" for c in calls):
        yield (
            "memory_format",
            "channels_last changes batch norms in bfloat16 alone: convolutions take as long as in "
            "NCHW, where their changes of layout are not modelled",
        )


def _of_calibration(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Describe the measurements behind a point's times."""
    known = calibration_of(scenario)
    how = _how_timed(scenario, known is not None)
    if known is None:
        yield "calibration", _without_machine(scenario.measured)
        yield from how.items()
        return
    of_devices = any(key.startswith("cluster.device") for key in known.intervals)
    source = scenario.workload.compute.source
    is_fitted = of_devices and source == "roofline"
    what = "calibrated" if is_fitted else f"network calibrated, compute {COMPUTED[source]}"
    text = f"{scenario.cluster.machine}: {what}"
    if scenario.measured is not None and scenario.measured.calibration is not None:
        text += "; and the scenario's measured.calibration"
    if own := replaced_keys(scenario.cluster, scenario.base):
        text += f", but {' and '.join(own)} are the scenario's own"
    yield "calibration", text
    yield from how.items()
    open_note = r"^not determined|fits? as well"
    left_open = [note for note in known.notes if re.search(open_note, note)]
    if left_open and scenario.cluster.world_size > 1:
        yield "undetermined", "; ".join(_without_lead(note) for note in left_open)


COMPUTED = {
    "roofline": "by its data sheet",
    "measured": "as measured",
    "profile": "by a profile",
}
"""What sets compute where no constant of the devices was fitted, by the compute's source."""


def _without_machine(measured: MeasuredScenario | None) -> str:
    """Describe what calibrates hardware of which the catalogue has no calibration."""
    if measured is None:
        return "none: nobody has measured this hardware"
    if measured.calibration is not None:
        return "by the scenario's measured.calibration"
    return (
        "none: no constant was fitted; validate holds this scenario against its measured "
        f"points, {len(settings(measured))}"
    )


def _of_machine(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Describe unusual properties of a scenario's machine, and its current name."""
    name = scenario.cluster.machine
    if name is None:
        return
    if name in OLD_NAMES:
        yield "machine", f"{name} is now called {OLD_NAMES[name]}; write that name"
    with suppress(ScenarioError):  # a file that was there when the scenario was read
        if caveats := read_machine(name, scenario.base).caveats:
            yield "caveats", " ".join(caveats)


def _how_timed(scenario: Scenario, is_calibrated: bool) -> dict[str, str]:
    """Describe the source of the times of a scenario's collectives."""
    groups = [name for several in scenario.program.groups for name in several.collectives]
    called = dict.fromkeys([*(name for name, _ in scenario.calls()), *groups])
    collectives, cluster = scenario.collectives, scenario.cluster
    if cluster.world_size == 1 or not called:
        return {}
    own = network_over_machine(cluster, scenario.base)
    simulated = [name for name in called if not collectives.cost_of(name).timed]
    phrases, nvls = [], ""
    if simulated:
        by = ", ".join(f"{name}: {getattr(collectives, name).kind}" for name in simulated)
        phrases.append(f"simulated over the links ({by})")
        reason = not_by_nccl(cluster, scenario.strategy, bool(scenario.neighbours))
        if reason and of_catalogue(cluster) and not collectives.cost.timed and not own:
            phrases.append(f"NCCL's own model is not the default here: {reason}")
    if len(simulated) < len(called):
        others = "others: " if simulated else ""
        phrases.append(others + _by_cost(scenario, is_calibrated))
        calls = [(name, size) for name in called if name not in simulated for size in TRIED_SIZES]
        nvls = without_nvls(cluster, collectives.cost, calls, scenario.base)
    network = _network(scenario, own, called)
    texts = {"network": network, "collectives": "; ".join(phrases), "NVLS": nvls}
    return {topic: text for topic, text in texts.items() if text}


def _network(scenario: Scenario, own: str, called: Iterable[str]) -> str:
    """Name links and topologies that have another part in times than the machine's, or none."""
    cluster, collectives, cost = scenario.cluster, scenario.collectives, scenario.collectives.cost
    across = (own or shared_network(cluster)) if cluster.num_nodes > 1 else ""
    if not collectives.all_timed:
        lead = f"is simulated over the links, in place of the cost of {cluster.machine}"
        by_links = f"inter_node.topology ({across}) {lead} (collectives.over_links: [] keeps that)"
        return by_links if own and across and not cost.timed else ""
    by_cost, parts = f"part in times by collectives.cost: {cost.kind}", list[str]()
    if across:
        lead = f"inter_node.topology ({across}) has no {by_cost}"
        parts.append(f"{lead}; to simulate its links write collectives.cost: links")
    if "topology" in replaced_keys(cluster, scenario.base):
        inside = cluster.topology if isinstance(cluster.topology, list) else [cluster.topology]
        lead = f"topology ({', '.join(dict.fromkeys(map(described, inside)))})"
        parts.append(f"{lead}: only the bandwidth out of a device has a {by_cost}")
    pure, mine = pure_cluster(cluster, scenario.base), wiring_of(cluster)
    others = mine if pure is None or pure.world_size != cluster.world_size else wiring_of(pure)
    calls, unused = [(name, size) for name in called for size in TRIED_SIZES], list[str]()
    for field, key in LINK_FIGURES.items():
        usual = mine._replace(**{field: getattr(others, field)})
        if usual != mine and all(cost.seconds(*c, mine) == cost.seconds(*c, usual) for c in calls):
            unused.append(key)
    if unused:
        parts.append(f"{' and '.join(unused)}: no {by_cost}, which has its own constants")
    return "; ".join(parts)


def _by_cost(scenario: Scenario, is_calibrated: bool) -> str:
    """Describe a cost that gives times, with the source of its constants."""
    from simdp.collectives.costs.nccl import NcclCost  # few runs need it

    wiring, cost = wiring_of(scenario.cluster), scenario.collectives.cost
    if not isinstance(cost, NcclCost):
        return f"a measured table ({getattr(cost, 'path', cost.kind)})"
    machine = scenario.cluster.machine
    if is_calibrated and machine is not None:
        usual = Collectives.model_validate(read_machine(machine, scenario.base).collectives).cost
        now, fitted = cost.model_dump(), usual.model_dump()
        own = [f"cost.{key}" for key in now if now[key] != fitted.get(key)]
        but = f", but {' and '.join(own)} of this scenario" if own else ""
        return f"NCCL's own model, with constants of {machine}{but}"
    classes = []
    if wiring.local_size > 1:
        classes.append(cost.peer or wiring.peer)
    if wiring.num_nodes > 1:
        classes.append(cost.network or wiring.network)
    return (
        f"NCCL's own model, with what clusters of this class reach ({', '.join(classes)}: "
        "simdp list constants)"
    )


def without_nvls(
    cluster: Cluster, cost: Cost, calls: Iterable[tuple[str, float]], base: Path
) -> str:
    """Remark that NCCL's default candidates lack the NVLS of a cluster's NVSwitch; empty if not.

    Only where NVLS would serve one of the ``calls``, of a collective and a size [bytes], faster,
    and where the links inside nodes are not those that a machine's cost was chosen for.
    """
    inside = cluster.numbering.inside
    switched = all(
        kind.topology.kind == "switch"
        and kind.link.name in LINKS.names()
        and LINKS.read(kind.link.name).get("nvls")
        for kind in inside
    )
    own = cluster.machine is None or {"link", "topology"} & {*replaced_keys(cluster, base)}
    if not (switched and own) or cost.kind != "nccl" or "algorithms" in cost.model_fields_set:
        return ""
    names = ["ring", "tree", "nvls"]
    usual, wiring = cost.model_dump(exclude_unset=True), wiring_of(cluster)
    with_it = type(cost).model_validate(usual | {"kind": "nccl", "algorithms": names})
    if all(with_it.seconds(*call, wiring) >= cost.seconds(*call, wiring) for call in calls):
        return ""
    link = ", ".join(dict.fromkeys(str(kind.link.name) for kind in inside))
    written = f"collectives: {{cost: {{kind: nccl, algorithms: [{', '.join(names)}]}}}}"
    return f"not counted, though NVSwitches of {link} have it; write {written}"


def replaced_keys(cluster: Cluster, base: Path) -> list[str]:
    """Return parts of the hardware in which a cluster differs from its machine's entry.

    ``base`` is the folder that the path of a machine's file starts from.
    """
    pure = pure_cluster(cluster, base)
    if pure is None:
        return []
    return [key for key in HARDWARE if getattr(pure, key) != getattr(cluster, key)]


def replaced_parts(cluster: Cluster, base: Path) -> tuple[str, ...]:
    """Return used parts of a cluster that differ from its machine.

    Returns
    -------
    tuple of str
        ``intra``, links inside a node; ``inter``, links between nodes; ``device``.
    """
    keys, parts = replaced_keys(cluster, base), []
    if cluster.local_size > 1 and not {"link", "topology"}.isdisjoint(keys):
        parts.append("intra")
    if cluster.num_nodes > 1 and "inter_node" in keys:
        parts.append("inter")
    if "device" in keys:
        parts.append("device")
    return tuple(parts)


def calibration_of(scenario: Scenario) -> Calibration | None:
    """Return the calibration of a scenario's machine; None if nothing was fitted."""
    name = scenario.cluster.machine
    if name is not None:
        with suppress(ScenarioError):  # a file that was there when the scenario was read
            return read_machine(name, scenario.base).calibration
    return None


def _without_lead(note: str) -> str:
    lead, colon, rest = note.partition(": ")
    return rest if colon and lead.startswith("not determined") else note
