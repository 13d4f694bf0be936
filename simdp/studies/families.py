"""Families: every kind that a scenario can name, with one line each."""

from __future__ import annotations

from simdp.cluster import device, link, machine
from simdp.cluster.allocators import ALLOCATORS
from simdp.cluster.stragglers import STRAGGLERS
from simdp.cluster.topologies import TOPOLOGIES
from simdp.collectives import FAMILIES
from simdp.collectives.costs import COSTS
from simdp.errors import KindError
from simdp.family import Family
from simdp.scenario import shipped
from simdp.spec import Spec
from simdp.strategies import STRATEGIES
from simdp.strategies.comm_hooks import COMM_HOOKS
from simdp.studies.presets import describe
from simdp.workload.compute import COMPUTES
from simdp.workload.datasets import DATASETS
from simdp.workload.faults import FAULTS
from simdp.workload.layers import LAYERS
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.losses import LOSSES
from simdp.workload.models import MODELS, PRESETS
from simdp.workload.optimizers import OPTIMIZERS
from simdp.workload.precision import PRECISIONS
from simdp.workload.schedules import SCHEDULES


def tables() -> tuple[Family[Spec], ...]:
    """Every family's table."""
    return (
        ACTIVATIONS,
        ALLOCATORS,
        COMM_HOOKS,
        COSTS,
        COMPUTES,
        DATASETS,
        FAULTS,
        LAYERS,
        LOSSES,
        MODELS,
        OPTIMIZERS,
        PRECISIONS,
        SCHEDULES,
        STRATEGIES,
        STRAGGLERS,
        TOPOLOGIES,
        *FAMILIES.values(),
    )


def families() -> dict[str, dict[str, str]]:
    """Every family: the kinds in it, each with the first line of its documentation."""
    kinds = {table.name: _members(table) for table in tables()}
    presets = {name: describe(name) for name in PRESETS}
    kinds["models"] = dict(sorted({**kinds["models"], **presets}.items()))
    kinds["devices"] = {name: device.describe(name) for name in device.DEVICES.names()}
    kinds["links"] = {name: link.describe(name) for name in link.LINKS.names()}
    kinds["machines"] = {name: machine.describe(name) for name in machine.MACHINES.names()}
    kinds["scenarios"] = {name: shipped.question(name) for name in shipped.names()}
    return dict(sorted(kinds.items()))


def _members(table: Family[Spec]) -> dict[str, str]:
    """A family's kinds, those of other packages with the package."""
    found = {kind: _first_line(member) for kind, member in table.items()}
    for kind in table.offered():
        try:
            member = table.find(kind)
            said = "" if member is None else _first_line(member)
        except KindError as error:
            said = f"cannot be used: {error}"
        found[kind] = f"{said} (from {table.offered_by(kind)})".strip()
    return dict(sorted(found.items()))


def _first_line(member: type[Spec]) -> str:
    return next(iter((member.__doc__ or "").strip().splitlines()), "")
