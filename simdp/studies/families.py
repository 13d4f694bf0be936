"""Every kind that a scenario can name, by family, with one line each.

Families are imported on demand: importing all takes longer than a short run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, cast

from simdp.errors import KindError, ScenarioError
from simdp.family import Family, has_offers

if TYPE_CHECKING:
    from simdp.collectives.costs.nccl import Pooled
    from simdp.spec import Spec

COLLECTIVES = (
    *("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast"),
    *("gather", "reduce", "reduce_scatter", "scatter"),
)

HOMES = {
    "activations": "simdp.workload.layers.activations",
    "allocators": "simdp.cluster.allocators",
    "comm_hooks": "simdp.strategies.comm_hooks",
    "costs": "simdp.collectives.costs",
    "computes": "simdp.workload.compute",
    "datasets": "simdp.workload.datasets",
    "failures": "simdp.cluster.failures",
    "faults": "simdp.workload.faults",
    "layers": "simdp.workload.layers",
    "lengths": "simdp.workload.datasets.base",
    "losses": "simdp.workload.losses",
    "models": "simdp.workload.models",
    "optimizers": "simdp.workload.optimizers",
    "precisions": "simdp.workload.precision",
    "recovery": "simdp.job.recovery",
    "schedules": "simdp.workload.schedules",
    "strategies": "simdp.strategies",
    "stragglers": "simdp.cluster.stragglers",
    "targets": "simdp.job.targets",
    "topologies": "simdp.cluster.topologies",
    **dict.fromkeys(COLLECTIVES, "simdp.collectives"),
}
"""Module of each family's table; the table's name is the family's in capitals."""

FILES = {
    "benchmarks": ("simdp.job.targets", "describe"),
    "devices": ("simdp.cluster.hardware", "describe_device"),
    "hosts": ("simdp.workload.compute", "describe_host"),
    "links": ("simdp.cluster.hardware", "describe_link"),
    "machines": ("simdp.cluster.hardware", "describe_machine"),
}
"""Families of YAML files: module of the table, and its function that describes a member."""

CODELESS = ("constants",)
"""Families whose members are fitted figures, without a class or a file of their own."""

PACKAGE = Path(__file__).parents[1]

LISTED = PACKAGE / "workload" / "models" / "listed.json"
"""Descriptions of the kinds and presets of models. The file is generated and tested, since building
the graphs of all presets takes far longer than reading it."""


def tables() -> tuple[Family[Spec], ...]:
    """Every family's table."""
    return tuple(map(_table, HOMES))


def _table(family: str) -> Family[Spec]:
    return cast("Family[Spec]", getattr(import_module(HOMES[family]), family.upper()))


def _catalogues() -> dict[str, Callable[[], dict[str, str]]]:
    """Functions that list the families without a table, or with more than a table."""
    return {
        **{family: partial(_described, family) for family in FILES},
        "models": _models,
        "constants": constants,
        "scenarios": _scenarios,
    }


def names() -> list[str]:
    """Every family's name, sorted."""
    return sorted({*HOMES, *_catalogues()})


def kinds(family: str) -> dict[str, str]:
    """The kinds of one of `names`, sorted, each with a description."""
    lines = _catalogues().get(family, partial(_members, family))
    return dict(sorted(lines().items()))


def places(family: str) -> dict[str, str]:
    """Path of the code of each kind of a family, ``file: class``; of a catalogue its YAML file.

    Raises
    ------
    ScenarioError
        If the family is one of `CODELESS`.
    """
    if family in FILES:
        folder = FILES[family][0].rpartition(".")[0].replace(".", "/")
        return {name: f"{folder}/{family}/{name}.yaml" for name in kinds(family)}
    if family == "scenarios":
        return {name: f"scenarios/{name}.yaml" for name in kinds(family)}
    if family in CODELESS:
        what = f"the family '{family}' has no classes or files"
        raise ScenarioError(f"--where: {what}; leave out --where")
    place_of = {kind: _place(member) for kind, member in _table(family).items()}
    if family == "models":
        from simdp.workload.models import PRESETS

        place_of |= {name: f"simdp/workload/models/presets/{name}.yaml" for name in PRESETS.names()}
    return dict(sorted(place_of.items()))


def _place(member: type[Spec]) -> str:
    file = Path(cast("str", sys.modules[member.__module__].__file__))
    if file.is_relative_to(PACKAGE):
        file = "simdp" / file.relative_to(PACKAGE)
    return f"{file.as_posix()}: {member.__qualname__}"


def families() -> dict[str, dict[str, str]]:
    """Every family with its `kinds`."""
    return {name: kinds(name) for name in names()}


def _models() -> dict[str, str]:
    """Kinds and presets of models, with descriptions from `LISTED`."""
    listed = cast("dict[str, str]", json.loads(LISTED.read_text("utf-8")))
    return (_offered(_table("models")) if has_offers("models") else {}) | listed


def _described(family: str) -> dict[str, str]:
    """A family of `FILES`, each member with its description."""
    module, describe = FILES[family]
    home = import_module(module)
    return {name: getattr(home, describe)(name) for name in getattr(home, family.upper()).names()}


def _scenarios() -> dict[str, str]:
    from simdp.scenario import shipped

    return {name: shipped.question(name) for name in shipped.names()}


def constants() -> dict[str, str]:
    """Pooled constants of NCCL's model for uncalibrated clusters, by class."""
    from simdp.collectives.costs.nccl import NETWORKS, PEERS, pooled

    described = {}
    for place, names in (("peer", PEERS), ("network", NETWORKS)):
        for name in names:
            spreads = [_constant_text(pooled(place, name, "share"), is_share=True)]
            if name == "tcp":
                spreads.append(_constant_text(pooled(place, name, "flow"), is_share=False))
            about = pooled(place, name, "share").about
            described[f"{place}.{name}"] = f"{about}. {'; '.join(spreads)}"
    return described


def _constant_text(constant: Pooled, is_share: bool) -> str:
    """A constant with its spread and its sources."""
    from simdp.studies.intervals import NORMAL_90  # imports the engine

    low, high = (constant.value * exp(way * NORMAL_90 * constant.spread) for way in (-1, 1))
    if is_share:
        high = min(high, max(constant.value, 1.0))
    scale, unit = (1.0, "") if is_share else (1e9, " GB/s")
    value, least, most = (f"{end / scale:.2f}{unit}" for end in (constant.value, low, high))
    sites = ", ".join(f"{site} {n / scale:.2f}{unit}" for site, n in constant.sites.items())
    whose = "published by NVIDIA" if constant.is_published else "mean of sites"
    what = "of the bandwidth" if is_share else "a node at most, with cards of 50 Gbit/s"
    return f"{value} {what} ({whose}; 90 % of sites {least} to {most}: {sites})"


def _members(family: str) -> dict[str, str]:
    """A family's kinds, including those of other packages."""
    table = _table(family)
    return {kind: _first_line(member) for kind, member in table.items()} | _offered(table)


def _offered(table: Family[Spec]) -> dict[str, str]:
    """Kinds of other packages, with the package's name."""
    described = {}
    for kind in table.offered():
        try:
            member = table.find(kind)
            line = "" if member is None else _first_line(member)
        except KindError as error:
            line = f"cannot be used: {error}"
        described[kind] = f"{line} (from {table.offered_by(kind)})".strip()
    return described


def _first_line(member: type[Spec]) -> str:
    return next(iter((member.__doc__ or "").strip().splitlines()), "")
