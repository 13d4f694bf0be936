"""Families: every kind that a scenario can name, with one line each."""

from __future__ import annotations

from collections.abc import Mapping

from simdp.cluster import device, link, machine
from simdp.cluster.allocators import ALLOCATORS
from simdp.cluster.stragglers import STRAGGLERS
from simdp.cluster.topologies import TOPOLOGIES
from simdp.collectives import FAMILIES
from simdp.collectives.costs import COSTS
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


def tables() -> dict[str, Mapping[str, type[Spec]]]:
    """The table of every family of Specs."""
    return {
        "activations": ACTIVATIONS,
        "allocators": ALLOCATORS,
        "comm_hooks": COMM_HOOKS,
        "costs": COSTS,
        "computes": COMPUTES,
        "datasets": DATASETS,
        "faults": FAULTS,
        "layers": LAYERS,
        "losses": LOSSES,
        "models": MODELS,
        "optimizers": OPTIMIZERS,
        "precisions": PRECISIONS,
        "schedules": SCHEDULES,
        "strategies": STRATEGIES,
        "stragglers": STRAGGLERS,
        "topologies": TOPOLOGIES,
        **FAMILIES,
    }


def families() -> dict[str, dict[str, str]]:
    """Every family: the kinds in it, each with the first line of its documentation."""
    kinds = {
        family: {kind: _first_line(member) for kind, member in sorted(table.items())}
        for family, table in tables().items()
    }
    presets = {name: describe(name) for name in PRESETS}
    kinds["models"] = dict(sorted({**kinds["models"], **presets}.items()))
    kinds["devices"] = {name: device.describe(name) for name in device.DEVICES.names()}
    kinds["links"] = {name: link.describe(name) for name in link.LINKS.names()}
    kinds["machines"] = {name: machine.describe(name) for name in machine.MACHINES.names()}
    return dict(sorted(kinds.items()))


def _first_line(member: type[Spec]) -> str:
    return (member.__doc__ or "").strip().splitlines()[0]
