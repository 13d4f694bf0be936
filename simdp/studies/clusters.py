"""Clusters of scenarios, at other world sizes than they were written for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.collectives.costs import AnyCost, Cost
from simdp.collectives.costs.links import LinksCost
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.scenario import Scenario
from simdp.scenario.defaults import by_nccl, not_by_nccl
from simdp.scenario.machines import cluster_file, read_cluster, with_machine


def load_clusters(path: Path, world_sizes: Sequence[int] = ()) -> tuple[str, list[Cluster]]:
    """Read the cluster of a scenario, whose other sections may be missing and are not looked at.

    Stragglers are left out, since they slow down compute alone, and may name ranks that a smaller
    world size lacks.

    Parameters
    ----------
    path : Path
        A YAML file, a saved ``result.json``, or the name of a machine or of a scenario that simdp
        brings.
    world_sizes : sequence of int
        In place of the file's own; none for that.

    Returns
    -------
    (str, list of Cluster)
        The scenario's name, or the machine's, and a cluster per world size.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    path = cluster_file(path)
    raw = _raw(path)
    settings = [{"world_size": n} for n in world_sizes] or [{}]
    name = raw.get("name", path.stem)
    return str(name), [_cluster(path, raw["cluster"] | change) for change in settings]


def load_cost(path: Path, of_groups: bool = False) -> Cost:
    """Read how a scenario, or a machine, wants the time of a collective to be found.

    Where no cost is written and no algorithm is named, NCCL's model times devices of the catalogue.

    Parameters
    ----------
    path : Path
        As for `load_clusters`.
    of_groups : bool, optional
        Whether process groups are asked for, which NCCL's model does not know: then it is none
        that nobody wrote.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    path = cluster_file(path)
    raw = _raw(path)
    collectives = raw.get("collectives") or {}
    if not isinstance(collectives, dict):
        return LinksCost()
    if "cost" not in collectives:
        cluster = _cluster(path, raw["cluster"])
        over_links = by_nccl(cluster, collectives, chosen=collectives.get("over_links") or ())
        alone = not (of_groups or raw.get("neighbours")) and not_by_nccl(cluster) is None
        return NcclCost() if alone and over_links == () else LinksCost()
    try:
        return make_cost(collectives["cost"], path.parent)
    except ScenarioError as error:
        lines = [f"{path}: collectives.cost: {line}" for line in error.problems]
        raise ScenarioError(lines) from None


def _raw(path: Path) -> dict[str, Any]:
    """Read a scenario as plain data, with what its machine brings."""
    return with_machine(read_cluster(path, list(Scenario.model_fields)), path.parent)


def make_cost(written: Any, base: Path) -> Cost:
    """Make a cost from what stands in YAML: ``nccl``, or ``{kind: table, path: all_reduce.log}``.

    Parameters
    ----------
    written : object
        Plain data.
    base : Path
        The folder that relative paths start from.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    field: Any = AnyCost
    try:
        made: Cost = TypeAdapter(field).validate_python(written)
        return made.settled(base)
    except ValidationError as error:
        raise ScenarioError([found.line for found in problems(error, written)]) from None


def _cluster(path: Path, raw: dict[str, Any]) -> Cluster:
    raw = {key: value for key, value in raw.items() if key not in ("stragglers", "failures")}
    try:
        return Cluster.model_validate(raw, context={"base": path.parent})
    except ValidationError as error:
        at = f"with world_size {raw['world_size']}: " if "world_size" in raw else ""
        lines = [
            f"{at}cluster{'.' if found.place else ': '}{found.line}"
            for found in problems(error, raw)
        ]
        raise ScenarioError([f"{path}: {line}" for line in lines]) from None
