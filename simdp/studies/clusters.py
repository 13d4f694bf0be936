"""Clusters of scenarios, at other world sizes than they were written for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.errors import ScenarioError, unknown_name
from simdp.files import read_json, read_yaml
from simdp.scenario import Scenario
from simdp.spec import problems


def load_clusters(path: Path, world_sizes: Sequence[int] = ()) -> tuple[str, list[Cluster]]:
    """Read the cluster of a scenario, whose other sections may be missing and are not looked at.

    Stragglers are left out, since they slow down compute alone, and may name ranks that a smaller
    world size lacks.

    Parameters
    ----------
    path : Path
        A YAML file, or a saved ``result.json``.
    world_sizes : sequence of int
        In place of the file's own; none for that.

    Returns
    -------
    (str, list of Cluster)
        The scenario's name, and a cluster per world size.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    if not path.suffix and not path.exists():
        raise ScenarioError(
            [f"--cluster {path}: there is no such file; give a scenario, whose cluster is taken."]
        )
    raw = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if path.suffix == ".json" and isinstance(raw, dict):
        raw = raw.get("scenario")
    if not isinstance(raw, dict) or not isinstance(raw.get("cluster"), dict):
        raise ScenarioError([f"{path}: has no cluster; it must be a mapping with cluster: ..."])
    known = list(Scenario.model_fields)
    unknown = [f"{path}: {unknown_name('key', key, known)}" for key in raw if key not in known]
    if unknown:
        raise ScenarioError(unknown)
    settings = [{"world_size": n} for n in world_sizes] or [{}]
    name = raw.get("name", path.stem)
    return str(name), [_cluster(path, raw["cluster"] | change) for change in settings]


def _cluster(path: Path, raw: dict[str, Any]) -> Cluster:
    raw = {key: value for key, value in raw.items() if key != "stragglers"}
    try:
        return Cluster.model_validate(raw, context={"base": path.parent})
    except ValidationError as error:
        at = f"with world_size {raw['world_size']}: " if "world_size" in raw else ""
        lines = [
            f"{at}cluster{'.' if found.place else ': '}{found.line}"
            for found in problems(error, raw)
        ]
        raise ScenarioError([f"{path}: {line}" for line in lines]) from None
