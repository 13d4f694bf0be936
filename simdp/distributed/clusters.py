"""Clusters of programs: a machine of the catalogue, or the cluster of a scenario, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.scenario import Scenario
from simdp.scenario.defaults import by_nccl, not_by_nccl
from simdp.scenario.machines import cluster_file, read_cluster, with_machine

DEFAULT = "dgx-a100"
"""The machine of programs that name none: nodes of 8 A100 behind NVSwitch."""


class Where(NamedTuple):
    """Where a program runs.

    Attributes
    ----------
    name : str
        The scenario's, or the machine's.
    cluster : Cluster
        Its ranks are the program's.
    collectives : Collectives
        What the scenario or the machine brings: the backend ``nccl``.
    """

    name: str
    cluster: Cluster
    collectives: Collectives


def find(
    cluster: Cluster | Path | str,
    world_size: int | None = None,
    devices_per_node: int | None = None,
) -> Where:
    """Find the cluster that a program runs on.

    Stragglers count where a scenario writes them. Those that a machine of the catalogue brings,
    a jitter of single steps, are left out, so that work takes the time that a program says.

    Parameters
    ----------
    cluster : Cluster, Path or str
        A cluster; or a scenario or a saved ``result.json``, whose other sections may be missing;
        or the name of a machine, or of a scenario that simdp brings.
    world_size, devices_per_node : int, optional
        In place of the cluster's own.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    changes = {"world_size": world_size, "devices_per_node": devices_per_node}
    changes = {key: value for key, value in changes.items() if value is not None}
    if isinstance(cluster, Cluster):
        found = _cluster("cluster", {**cluster.model_dump(), **changes}, Path())
        return Where("cluster", found, _by_nccl(found, {}, Collectives()))
    path = cluster_file(Path(cluster))
    raw = read_cluster(path, list(Scenario.model_fields))
    stragglers = raw["cluster"].get("stragglers", [])
    filled = with_machine(raw, path.parent)
    found = _cluster(
        str(path), filled["cluster"] | {"stragglers": stragglers} | changes, path.parent
    )
    collectives = _collectives(path, filled)
    if not filled.get("neighbours"):
        collectives = _by_nccl(found, filled.get("collectives") or {}, collectives)
    return Where(str(raw.get("name", path.stem)), found, collectives)


def _by_nccl(cluster: Cluster, written: dict[str, Any], collectives: Collectives) -> Collectives:
    """Time collectives as scenarios do where no algorithm is named and no cost is written."""
    over_links = by_nccl(cluster, written, chosen=collectives.over_links or ())
    if over_links is None or not_by_nccl(cluster) is not None:
        return collectives
    update = {"cost": NcclCost(), "over_links": over_links or None}
    return collectives.model_copy(update=update)


def _cluster(where: str, raw: dict[str, Any], base: Path) -> Cluster:
    try:
        found = Cluster.model_validate(raw, context={"base": base})
    except ValidationError as error:
        lines = [f"{where}: cluster.{found.line}" for found in problems(error, raw)]
        raise ScenarioError(lines) from None
    for number, straggler in enumerate(found.stragglers):
        if straggler.kind == "degraded_link" and straggler.comes_and_goes():
            raise ScenarioError(
                [
                    f"{where}: cluster.stragglers.{number}: degraded_link comes and goes by steps, "
                    "of which a rank program knows none; leave out steps, on and off."
                ]
            )
    return found


def _collectives(path: Path, raw: dict[str, Any]) -> Collectives:
    written = raw.get("collectives", {})
    try:
        return Collectives.model_validate(written).settled(path.parent)
    except ValidationError as error:
        lines = [f"{path}: collectives.{found.line}" for found in problems(error, written)]
        raise ScenarioError(lines) from None
    except ScenarioError as error:
        raise ScenarioError([f"{path}: {line}" for line in error.problems]) from None
