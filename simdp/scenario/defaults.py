"""Defaults of a scenario that depend on several of its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.cluster.hardware import DEVICES, is_file, read_machine
from simdp.cluster.topologies.base import Topology
from simdp.cluster.topologies.direct import SwitchTopology
from simdp.collectives import FAMILIES, Collectives, has_cost, named
from simdp.collectives.costs import LinksCost
from simdp.errors import ScenarioError
from simdp.scenario.overrides import Raw
from simdp.strategies.base import Strategy
from simdp.workload import Workload
from simdp.workload.losses import LOSSES, Loss
from simdp.workload.precision import PRECISIONS

# Machines -----------------------------------------------------------------------------------------


def pure_cluster(cluster: Cluster, base: Path) -> Cluster | None:
    """Return the cluster of a cluster's machine: of its size, or of another if that needs keys."""
    if cluster.machine is None:
        return None
    pure = _pure if is_file(cluster.machine) else _pure_of_catalogue
    with suppress(ScenarioError):  # a file that was there when the scenario was read
        return pure(cluster.machine, base, cluster.world_size, cluster.devices_per_node)
    return None


def _pure(name: str, base: Path, world_size: int, devices_per_node: int | None) -> Cluster | None:
    sizes = {"world_size": world_size, "devices_per_node": devices_per_node}
    for size in (sizes, {"world_size": 1}):
        with suppress(ValidationError):
            raw = read_machine(name, base).cluster | size
            return Cluster.model_validate(raw, context={"base": base})
    return None


_pure_of_catalogue = lru_cache(maxsize=64)(_pure)


# Defaults -----------------------------------------------------------------------------------------

FEW_STEPS, SOME_STEPS = 2, 8
"""Default steps of a time-only run: one warm-up and one steady step; more if steps differ by
chance."""

WITHOUT_SHARING = ("switch", "rail_optimised", "fat_tree")
"""Networks between nodes in which rings of consecutive nodes share no link."""


def without_data(data: object) -> object:
    """Remove the data set requirement of a time-only job; return any other scenario unchanged."""
    if not isinstance(data, Mapping) or data.get("numerics") is not False:
        return data
    workload = data.get("workload")
    if not isinstance(workload, Mapping):
        return data
    given = workload.get("dataset")
    if isinstance(given, Mapping) and "kind" not in given:
        return {**data, "workload": {**workload, "dataset": {"kind": "none", **given}}}
    return data if given is not None else {**data, "workload": {**workload, "dataset": "none"}}


class ScenarioParts(NamedTuple):
    """Parts of a valid scenario that the defaults depend on."""

    cluster: Cluster  # as in a scenario
    workload: Workload  # as in a scenario
    strategy: Strategy  # as in a scenario
    numerics: bool  # as in a scenario
    sweep: Collection[str]  # swept keys
    # the scenario as plain data, with its machine's values; None: its collectives are built
    written: Raw | None
    collectives: Collectives  # as in a scenario
    among_jobs: bool  # whether other jobs share its network


def derived_defaults(parts: ScenarioParts, base: Path) -> dict[str, Any]:
    """Return defaults that depend on several parts, as new sections of the scenario.

    Relative paths start from ``base``.
    """
    sections: dict[str, Any] = {}
    if parts.written is not None:
        written = parts.written.get("collectives") or {}
        around = parts.sweep, parts.among_jobs, parts.strategy
        timed = usual_times(parts.cluster, parts.collectives, written, base, *around)
        sections = {} if timed is parts.collectives else {"collectives": timed}
    changed: dict[str, Any] = {}
    loss = _usual_loss(parts.workload)
    if loss is not None:
        changed["loss"] = loss
    low = _low_of_strategy(parts)
    if low is not None:
        wide = "float32" if parts.strategy.dtypes.outputs == "float32" else None
        changed["precision"] = PRECISIONS["mixed"].model_validate(
            {
                **{"dtype": low, "grad_scaler": False, "output_dtype": wide},
                "output_units": parts.strategy.cast_units(parts.workload) if wide else (),
            }
        )
    if _repeats_itself(parts):
        with suppress(ScenarioError):  # of a file, which its own checks report
            changed |= _few_steps(parts, base)
    if changed:
        sections["workload"] = parts.workload.model_copy(update=changed)
    return sections


def usual_times(
    cluster: Cluster,
    collectives: Collectives,
    written: Mapping[str, object],
    base: Path,
    swept: Collection[str] = (),
    among_jobs: bool = False,
    strategy: Strategy | None = None,
) -> Collectives:
    """Return collectives with the default source of their times; the same if they have another."""
    over_links = by_nccl(cluster, written, swept, collectives.over_links or ())
    if over_links is None or not_by_nccl(cluster, strategy, among_jobs) is not None:
        return in_place_of_machine(cluster, collectives, base, swept, among_jobs) or collectives
    from simdp.collectives.costs.nccl import NcclCost  # few runs need it

    return collectives.model_copy(update={"cost": NcclCost(), "over_links": over_links or None})


def by_nccl(
    cluster: Cluster,
    written: Mapping[str, object],
    swept: Collection[str] = (),
    chosen: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Return collectives to simulate over the links if NCCL's model times all others by default.

    None if it is not the default. ``written`` is the scenario's section of collectives as plain
    data, with its machine's values; ``swept`` are keys of its sweep, ``chosen`` further simulated
    collectives. Only devices of the catalogue are known to be NVIDIA's or AMD's.
    """
    if has_cost(written, swept) or not of_catalogue(cluster):
        return None
    simulated = {*named(written, swept), *chosen}
    return tuple(name for name in FAMILIES if name in simulated)


RESIZING = {"cluster.world_size", "cluster.devices_per_node"}  # change the number of nodes


def network_over_machine(cluster: Cluster, base: Path) -> str:
    """Describe a topology between nodes that replaces the machine's; empty without one."""
    pure = pure_cluster(cluster, base)
    if pure is None or cluster.inter_node is None:
        return ""
    own = pure.inter_node.topology if pure.inter_node else SwitchTopology()
    return described(cluster.inter_node.topology) if cluster.inter_node.topology != own else ""


def described(topology: Topology) -> str:
    """Write a topology's kind and its options, but no lists: ``fat_tree, ports_per_leaf: 32``."""
    options = topology.model_dump(exclude={"kind"}, exclude_defaults=True).items()
    listed = (f"{k}: {v:g}" if isinstance(v, int | float) else k for k, v in options)
    return ", ".join([topology.kind, *listed])


def in_place_of_machine(
    cluster: Cluster,
    collectives: Collectives,
    base: Path,
    swept: Collection[str] = (),
    among_jobs: bool = False,
) -> Collectives | None:
    """Return collectives over the links of a network that its machine's cost does not cover.

    None if the cost covers it, or the scenario has its own: another one, or empty ``over_links``.
    Those without an algorithm in the scenario are hierarchical, to use every network card. All
    points of a sweep over such networks have the same source of times.
    """
    chosen, resized = collectives.over_links, RESIZING & set(swept)
    if cluster.machine is None or chosen == () or not (cluster.num_nodes > 1 or resized):
        return None
    is_swept = any(key.startswith("cluster.inter_node.topology") for key in swept)
    if not (is_swept or among_jobs or network_over_machine(cluster, base)):
        return None
    with suppress(ScenarioError, ValidationError):
        brought = read_machine(cluster.machine, base).collectives
        own = Collectives.model_validate(brought, context={"base": base}).settled(base)
        if own.cost.timed and own.cost == collectives.cost:
            usual = [(name, FAMILIES[name].get("hierarchical")) for name in FAMILIES]
            free = [(name, kind) for name, kind in usual if kind and name not in (chosen or ())]
            algorithms = {name: kind.model_validate({}) for name, kind in free}
            update = {"cost": LinksCost(), "over_links": None, **algorithms}
            return collectives.model_copy(update=update)
    return None


def of_catalogue(cluster: Cluster) -> bool:
    """Return whether all devices are of the catalogue, which has NVIDIA's and AMD's."""
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    return all(device.name in DEVICES.names() for device in devices)


def not_by_nccl(
    cluster: Cluster, strategy: Strategy | None = None, among_jobs: bool = False
) -> str | None:
    """Return why NCCL's model is not the default of a scenario; None if it is.

    ``among_jobs`` is whether other jobs share its network.
    """
    if among_jobs:
        return "other jobs share the network"
    if strategy is not None and strategy.has_server:
        return f"a {strategy.kind} sends without collectives"
    if cluster.ranks_per_device > 1:
        return "ranks share a device, which NCCL refuses"
    shared = shared_network(cluster)
    return f"nodes share links of the {shared}" if shared else None


def shared_network(cluster: Cluster) -> str:
    """Name a topology between nodes in which rings of nodes share links; empty for others."""
    if cluster.inter_node is None:
        return ""
    between = cluster.inter_node.topology
    shares = any(
        (getattr(between, key, None) or 1.0) > 1
        for key in ("oversubscription", "pod_oversubscription")
    )
    if between.kind in WITHOUT_SHARING and not shares:
        return ""
    return between.kind + " (oversubscription)" * shares


def _usual_loss(workload: Workload) -> Loss | None:
    """Return the loss of a model without data: that of its usual data set."""
    model = workload.model
    if workload.loss.kind != "none" or workload.dataset.kind != "none" or model.timed:
        return None
    if workload.compute.without_data or model.recorded:
        return None
    shapes = model.input_shapes()
    images = any(shape is not None and len(shape) == 3 for shape in shapes.values())
    classes = images or any(model.num_tokens(name) is not None for name in shapes)
    return LOSSES["cross_entropy" if classes else "mse"].model_validate({})


def _low_of_strategy(parts: ScenarioParts) -> str | None:
    """Return the strategy's 16-bit compute dtype, if no precision is written."""
    swept = any(key.split(".")[0] == "strategy" for key in parts.sweep)
    low = parts.strategy.dtypes.parameters
    workload = parts.workload
    if swept or low in (None, "float32") or workload.dtype != "float32":
        return None
    return low if workload.precision.kind == "full" else None


def _repeats_itself(parts: ScenarioParts) -> bool:
    """Return whether an epoch of a time-only run repeats its steps, so that a few are enough."""
    workload, strategy, cluster = parts.workload, parts.strategy, parts.cluster
    if parts.numerics or not workload.dataset.has_samples:
        return False
    swept = {"numerics", "workload.steps", "workload.epochs", "workload"} & set(parts.sweep)
    if workload.steps is not None or workload.epochs is not None or swept:
        return False
    own = workload.samples_per_rank or workload.rebalance
    if workload.input is not None or own or workload.inject:
        return False
    if any(straggler.comes_and_goes() for straggler in cluster.stragglers):
        return False
    is_alike = not strategy.averages_parameters and not strategy.first_alike
    return not strategy.has_server and is_alike


def _few_steps(parts: ScenarioParts, base: Path) -> dict[str, int]:
    """Return the default ``steps``; empty if an epoch has no more."""
    workload, cluster = parts.workload, parts.cluster
    drawn = any(straggler.by_chance for straggler in cluster.stragglers)
    steps = SOME_STEPS if drawn or workload.lengths(0, base) else FEW_STEPS
    longer = workload.num_samples(base) > steps * workload.samples_per_step(cluster.world_size)
    return {"steps": steps} if longer else {}
