"""Defaults that need several parts of a scenario, or depend on what its file does not say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from simdp.cluster import Cluster
from simdp.cluster.device import DEVICES
from simdp.collectives import FAMILIES, Collectives, named, says_cost
from simdp.errors import ScenarioError
from simdp.strategies import Strategy
from simdp.workload import Workload
from simdp.workload.losses import LOSSES, Loss
from simdp.workload.precision import PRECISIONS

FEW_STEPS, SOME_STEPS = 2, 8
"""Steps of a run of times alone that does not say how long it is: one to warm up and a steady one;
and more where steps differ by chance."""

WITHOUT_SHARING = ("switch", "rail_optimised", "fat_tree")
"""Networks between nodes in which rings of consecutive nodes share no link."""

Raw = dict[str, Any]


def without_data(data: Any) -> Any:
    """Let a job of times alone do without a data set; anything else comes back as it is."""
    if not isinstance(data, Mapping) or data.get("numerics") is not False:
        return data
    workload = data.get("workload")
    if not isinstance(workload, Mapping):
        return data
    given = workload.get("dataset")
    if isinstance(given, Mapping) and "kind" not in given:
        return {**data, "workload": {**workload, "dataset": {"kind": "none", **given}}}
    return data if given is not None else {**data, "workload": {**workload, "dataset": "none"}}


class Parts(NamedTuple):
    """What is looked at of a valid scenario.

    Attributes
    ----------
    cluster, workload, strategy, numerics
        As in a scenario.
    sweep : collection of str
        Keys that are swept.
    written : Raw or None
        The scenario as plain data, with what its machine brings; None: its collectives are made.
    collectives : Collectives
        As in a scenario.
    among_jobs : bool
        Whether other jobs share its network.
    """

    cluster: Cluster
    workload: Workload
    strategy: Strategy
    numerics: bool
    sweep: Collection[str]
    written: Raw | None
    collectives: Collectives
    among_jobs: bool


def what_follows(parts: Parts, base: Path) -> dict[str, Any]:
    """Say what follows from several parts together, where nobody says it.

    Parameters
    ----------
    parts : Parts
        Of the scenario.
    base : Path
        Folder that relative paths start from.

    Returns
    -------
    dict of str to Spec
        Sections of the scenario, made anew.
    """
    found: dict[str, Any] = {}
    over_links = _over_links(parts)
    if over_links is not None:
        from simdp.collectives.costs.nccl import NcclCost  # few runs need it

        update = {"cost": NcclCost(), "over_links": over_links or None}
        found["collectives"] = parts.collectives.model_copy(update=update)
    changed: dict[str, Any] = {}
    loss = _usual_loss(parts.workload)
    if loss is not None:
        changed["loss"] = loss
    low = _low_of_strategy(parts)
    if low is not None:
        wide = "float32" if getattr(parts.strategy, "output_dtype", None) == "float32" else None
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
        found["workload"] = parts.workload.model_copy(update=changed)
    return found


def _over_links(parts: Parts) -> tuple[str, ...] | None:
    """Collectives to simulate over the links where NCCL's own model times all others.

    None where it times none: a cost is written, or NCCL's model does not suit the scenario.
    """
    if parts.written is None:
        return None
    if not_by_nccl(parts.cluster, parts.strategy, parts.among_jobs) is not None:
        return None
    chosen = parts.collectives.over_links or ()
    return by_nccl(parts.cluster, parts.written.get("collectives") or {}, parts.sweep, chosen)


def by_nccl(
    cluster: Cluster,
    written: Mapping[str, Any],
    swept: Collection[str] = (),
    chosen: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Collectives to simulate over the links where NCCL's own model times all others by default.

    Parameters
    ----------
    cluster : Cluster
        Only devices of the catalogue are known to be NVIDIA's or AMD's.
    written : mapping
        The scenario's section of collectives as plain data, with what its machine brings.
    swept : collection of str, optional
        Keys of its sweep.
    chosen : collection of str, optional
        Further collectives that are simulated.

    Returns
    -------
    tuple of str, or None
        None where the default is no model of NCCL.
    """
    if says_cost(written, swept) or not of_catalogue(cluster):
        return None
    simulated = {*named(written, swept), *chosen}
    return tuple(name for name in FAMILIES if name in simulated)


def of_catalogue(cluster: Cluster) -> bool:
    """Whether all devices are of the catalogue, which has NVIDIA's and AMD's."""
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    return all(device.name in DEVICES.names() for device in devices)


def not_by_nccl(
    cluster: Cluster, strategy: Strategy | None = None, among_jobs: bool = False
) -> str | None:
    """Give the reason why NCCL's own model is not the default of a scenario; None where it is.

    Parameters
    ----------
    cluster : Cluster
        Of the scenario.
    strategy : Strategy, optional
        As well.
    among_jobs : bool, optional
        Whether other jobs share its network.
    """
    if among_jobs:
        return "other jobs share the network"
    if strategy is not None and strategy.player != "together":
        return f"a {strategy.kind} sends without collectives"
    if cluster.ranks_per_device > 1:
        return "ranks share a device, which NCCL refuses"
    between = None if cluster.inter_node is None else cluster.inter_node.topology
    shares = any(
        (getattr(between, key, None) or 1.0) > 1
        for key in ("oversubscription", "pod_oversubscription")
    )
    if between is not None and (between.kind not in WITHOUT_SHARING or shares):
        return f"nodes share links of the {between.kind}{' (oversubscription)' * shares}"
    return None


def _usual_loss(workload: Workload) -> Loss | None:
    """What a model without data learns from, as its usual data set would have it."""
    model = workload.model
    if workload.loss.kind != "none" or workload.dataset.kind != "none" or model.timed:
        return None
    if workload.compute.without_data or model.recorded:
        return None
    shapes = model.input_shapes()
    images = any(shape is not None and len(shape) == 3 for shape in shapes.values())
    classes = images or any(model.num_tokens(name) is not None for name in shapes)
    return LOSSES["cross_entropy" if classes else "mse"].model_validate({})


def _low_of_strategy(parts: Parts) -> str | None:
    """The 16-bit dtype that the strategy lets layers compute in, where no precision is written."""
    swept = any(key.split(".")[0] == "strategy" for key in parts.sweep)
    low: str | None = getattr(parts.strategy, "param_dtype", None)
    workload = parts.workload
    if swept or low in (None, "float32") or workload.dtype != "float32":
        return None
    return low if workload.precision.kind == "full" else None


def _repeats_itself(parts: Parts) -> bool:
    """Whether an epoch of times alone is more of the same, of which a few steps are enough."""
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
    late = getattr(getattr(strategy, "comm_hook", None), "start_step", 0)
    return strategy.player == "together" and not hasattr(strategy, "local_steps") and not late


def _few_steps(parts: Parts, base: Path) -> dict[str, int]:
    """How many steps to simulate; nothing where an epoch has no more."""
    workload, cluster = parts.workload, parts.cluster
    drawn = any(straggler.by_chance for straggler in cluster.stragglers)
    steps = SOME_STEPS if drawn or workload.lengths(0, base) else FEW_STEPS
    longer = workload.num_samples(base) > steps * workload.samples_per_step(cluster.world_size)
    return {"steps": steps} if longer else {}
