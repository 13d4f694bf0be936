"""Families: every kind that a scenario can name, with one line each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp

from simdp.cluster import device, link, machine
from simdp.cluster.allocators import ALLOCATORS
from simdp.cluster.failures import FAILURES
from simdp.cluster.stragglers import STRAGGLERS
from simdp.cluster.topologies import TOPOLOGIES
from simdp.collectives import FAMILIES
from simdp.collectives.costs import COSTS
from simdp.collectives.costs.pool import NETWORKS, PEERS, Pooled, pooled
from simdp.errors import KindError
from simdp.family import Family
from simdp.job.recovery import RECOVERY
from simdp.job.target import TARGETS, benchmark
from simdp.scenario import shipped
from simdp.spec import Spec
from simdp.strategies import STRATEGIES
from simdp.strategies.comm_hooks import COMM_HOOKS
from simdp.studies.presets import describe
from simdp.workload.compute import COMPUTES
from simdp.workload.datasets import DATASETS
from simdp.workload.datasets.lengths import LENGTHS
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
        FAILURES,
        FAULTS,
        LAYERS,
        LENGTHS,
        LOSSES,
        MODELS,
        OPTIMIZERS,
        PRECISIONS,
        RECOVERY,
        SCHEDULES,
        STRATEGIES,
        STRAGGLERS,
        TARGETS,
        TOPOLOGIES,
        *FAMILIES.values(),
    )


def _makers() -> dict[str, Callable[[], dict[str, str]]]:
    """What says the kinds of each family; to say those of one is far less work than all."""
    found: dict[str, Callable[[], dict[str, str]]] = {
        table.name: partial(_members, table) for table in tables()
    }
    return found | {
        "models": lambda: _members(MODELS) | {name: describe(name) for name in PRESETS},
        "benchmarks": lambda: {
            name: benchmark.describe(name) for name in benchmark.BENCHMARKS.names()
        },
        "constants": constants,
        "devices": lambda: {name: device.describe(name) for name in device.DEVICES.names()},
        "links": lambda: {name: link.describe(name) for name in link.LINKS.names()},
        "machines": lambda: {name: machine.describe(name) for name in machine.MACHINES.names()},
        "scenarios": lambda: {name: shipped.question(name) for name in shipped.names()},
    }


def names() -> list[str]:
    """Every family's name, sorted."""
    return sorted(_makers())


def kinds(family: str) -> dict[str, str]:
    """The kinds of one of `names`, sorted, each with the first line of its documentation."""
    return dict(sorted(_makers()[family]().items()))


def families() -> dict[str, dict[str, str]]:
    """Every family with its `kinds`."""
    return {name: kinds(name) for name in names()}


def constants() -> dict[str, str]:
    """What NCCL's model takes for a cluster that nobody has measured, class by class."""
    found = {}
    for place, names in (("peer", PEERS), ("network", NETWORKS)):
        for name in names:
            said = [_said(pooled(place, name, "share"), is_share=True)]
            if name == "tcp":
                said.append(_said(pooled(place, name, "flow"), is_share=False))
            about = pooled(place, name, "share").about
            found[f"{place}.{name}"] = f"{about}. {'; '.join(said)}"
    return found


def _said(constant: Pooled, is_share: bool) -> str:
    """A constant with its spread and its sources."""
    from simdp.studies.validate.intervals import NORMAL_90  # brings the engine along

    low, high = (constant.value * exp(way * NORMAL_90 * constant.spread) for way in (-1, 1))
    if is_share:
        high = min(high, max(constant.value, 1.0))
    write = _share if is_share else _rate
    value, least, most = map(write, (constant.value, low, high))
    sites = ", ".join(f"{site} {write(figure)}" for site, figure in constant.sites.items())
    whose = "published by NVIDIA" if constant.is_published else "mean of sites"
    what = "of the bandwidth" if is_share else "a node at most"
    return f"{value} {what} ({whose}; 90 % of sites {least} to {most}: {sites})"


def _share(value: float) -> str:
    return f"{value:.2f}"


def _rate(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s"


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
