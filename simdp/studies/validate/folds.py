"""Folds of a cross-validation, and refits of NCCL's constants without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from json import dumps, loads
from math import sqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from simdp.arrays import Floats, grouped
from simdp.cluster.hardware import Calibration, read_machine
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.reports.captions import model_name
from simdp.scenario.measured import MeasuredCollective, MeasuredPoint, MeasuredScenario
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.studies.calibrate.fit import (
    CalibrationPoint,
    Candidates,
    Constant,
    Fit,
    fit,
    nccl_constants,
    restraints,
    typical_values,
)
from simdp.studies.intervals import COST, NORMAL_90, Known, as_unmeasured, precision_of
from simdp.studies.validate.jobs import cluster_name, with_common_workloads
from simdp.studies.variants import with_values
from simdp.workload.models import PRESETS

# Folds --------------------------------------------------------------------------------------------

By = Literal["model", "kind", "precision", "nodes", "scale", "collective", "cluster"]

BY: tuple[By, ...] = get_args(By)


class Item(NamedTuple):
    """A measured point or table of a scenario, by its number from 0, made a scenario."""

    file: str
    name: str
    measured: MeasuredScenario
    number: int
    made: Scenario
    is_table: bool

    @property
    def point(self) -> MeasuredPoint:
        """A point's measurement."""
        return self.measured.points[self.number]

    @property
    def table(self) -> MeasuredCollective:
        """A table's measurements."""
        return self.measured.collectives[self.number]

    @property
    def key(self) -> tuple[str, bool, int]:
        """Unique key."""
        return self.file, self.is_table, self.number

    @property
    def place(self) -> str:
        """Place for messages."""
        return f"{self.file}: measured.{self.part}"

    @property
    def part(self) -> str:
        """Its list in ``measured``, and its number."""
        return f"{'collectives' if self.is_table else 'points'}.{self.number}"

    @property
    def machine(self) -> str:
        """Cluster of the fold."""
        named = self.measured.cluster if self.is_table else None
        return named or cluster_name(self.name, self.made)

    @property
    def is_fitted(self) -> bool:
        """Whether the workload was fitted to it, as to the step of a single device."""
        if self.is_table or self.point.role == "predicted":
            return False
        own = self.measured.calibration
        workload = own is not None and any(key.startswith("workload.") for key in own.intervals)
        return workload or self.made.cluster.world_size == 1


class FoldData(NamedTuple):
    """Items that are left out together, and the remaining items of the cluster."""

    name: str
    left_out: list[Item]
    remaining: list[Item]


def items_of(scenarios: Mapping[Path, Scenario]) -> list[Item]:
    """List every point and table of some scenarios."""
    items = []
    for file, scenario in scenarios.items():
        measured, (points, tables) = scenario.measured, scenario.measured_scenarios()
        assert measured is not None
        whole = str(file), scenario.name, measured
        items += [Item(*whole, i, p, False) for i, p in enumerate(with_common_workloads(points))]
        items += [Item(*whole, i, table, True) for i, table in enumerate(tables)]
    return items


def folds_of(items: Iterable[Item], by: By) -> list[FoldData]:
    """Divide measurements into folds; a ScenarioError if there are none.

    A fold is a model, a kind of model, a precision, a number of nodes, all numbers of nodes above
    `MANY`, or a collective of one cluster that has others; or a whole cluster.
    """
    where = site_of if by == "cluster" else lambda item: item.machine
    groups = grouped((where(item), item) for item in items)
    folds = [fold for name, group in groups.items() for fold in _folds(name, group, by)]
    if not folds:
        raise ScenarioError(_why_no_folds(groups, by))
    return folds


def _folds(name: str, group: list[Item], by: By) -> list[FoldData]:
    if by == "cluster":
        return [FoldData(name, group, [])]
    parts = grouped((what, item) for item in group if (what := UNITS[by](item)) is not None)
    if len(parts) < 2:
        return []
    if by == "scale":
        del parts[False]
    left = {id(item): what for what, part in parts.items() for item in part}
    return [
        FoldData(
            f"{LABELS[by](what)} on {name}",
            part,
            [item for item in group if left.get(id(item)) != what],
        )
        for what, part in (sorted(parts.items()) if by == "nodes" else parts.items())
    ]


def _why_no_folds(groups: Mapping[str, list[Item]], by: By) -> str:
    """Explain why there are no folds, and which other kinds there are."""
    reasons = []
    for name, group in groups.items():
        units = dict.fromkeys(UNITS[by](item) for item in group)
        only = [LABELS[by](what) for what in units if what is not None]
        reasons.append(f"{name} has {'only ' + only[0] if only else MISSING[by]}")
    more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    others = [
        other
        for other in BY
        if other == "cluster" or any(_folds(name, group, other) for name, group in groups.items())
    ]
    return (
        f"--leave-out {by}: nothing can be left out: {', '.join(reasons[:3])}{more}; give "
        f"scenarios of one cluster with several, or leave out {' or '.join(others)}."
    )


def site_of(item: Item) -> str:
    """Site of a measurement: several machines may be one site."""
    machine = item.made.cluster.machine
    site = read_machine(machine, item.made.base).site if machine else None
    return site or item.measured.cluster or item.machine


def model_of(item: Item) -> str | None:
    """Model of a point; None for a table."""
    if item.is_table:
        return None
    return _name_of(dumps(item.made.resolved()["workload"]["model"]), item.made)


_NAMES: dict[str, str] = {}


def _name_of(model: str, made: Scenario) -> str:
    """Name a model: its preset, or its kind and number of parameters."""
    if model not in _NAMES:
        name = model_name({"model": loads(model)})
        if name not in PRESETS.names():
            count = sum(tensor.num_elements for tensor in made.workload.graph.parameters)
            kind = made.workload.model.kind
            size = f"{count / 1e6:.3g}M parameters"
            name = size if kind == "parameters" else f"{kind} of {size}"
        _NAMES[model] = name
    return _NAMES[model]


def kind_of(item: Item) -> str | None:
    """Kind of a point's model; None for a table, and where layers are unknown."""
    family = "unknown" if item.is_table else item.made.workload.graph.family
    return None if family == "unknown" else family


MANY = 10
"""Nodes beyond which a cluster is of another scale: most measured tables have at most these."""


UNITS: dict[str, Callable[[Item], Any]] = {
    "model": model_of,
    "kind": kind_of,
    "precision": lambda item: None if item.is_table else precision_of(item.made),
    "nodes": lambda item: item.made.cluster.num_nodes,
    "scale": lambda item: item.made.cluster.num_nodes > MANY,
    "collective": lambda item: item.table.collective if item.is_table else None,
    "cluster": lambda item: item.machine,
}
"""Property of an item that a fold has in common; None where the item has none."""

LABELS: dict[str, Callable[[Any], str]] = {
    "model": str,
    "kind": lambda kind: f"models of {kind}" if kind == "attention" else f"{kind} models",
    "precision": str,
    "nodes": lambda nodes: "1 node" if nodes == 1 else f"{nodes} nodes",
    "scale": lambda far: f"more than {MANY} nodes" if far else f"at most {MANY} nodes",
    "collective": str,
    "cluster": str,
}

MISSING = {
    **dict.fromkeys(("model", "precision"), "no steps"),
    "kind": "no steps of known layers",
    "collective": "no tables",
}


# Refitted constants -------------------------------------------------------------------------------

LEAST_SHARE = 1e-3
"""Least change of a constant's logarithm for a direction of the covariance to count."""


Numbers = dict[str, float]  # constants by key, in SI units


def by_key(constants: Sequence[Constant], values: Floats) -> Numbers:
    """Values of constants, by key."""
    return {constant.key: float(value) for constant, value in zip(constants, values, strict=True)}


class Refitted(NamedTuple):
    """Constants that were refitted without a fold, with the covariance of their logarithms.

    ``residual`` is the relative standard deviation of the unexplained error; ``tables`` has the
    node counts of the fitted tables by collective.
    """

    constants: tuple[Constant, ...]
    values: Floats
    covariance: Floats
    residual: float
    tables: dict[str, list[int]]

    def values_by_key(self) -> Numbers:
        """The values by key, in SI units."""
        return by_key(self.constants, self.values)

    def ends(self) -> list[tuple[Numbers, Numbers]]:
        """Values at both ends of the 90 % interval of each independent direction.

        Constants are correlated: a table may determine only the sum of a bandwidth's and a
        latency's effects. The eigenvectors of the covariance are independent.
        """
        variances, directions = np.linalg.eigh(self.covariance)
        low = np.array([constant.low for constant in self.constants])
        high = np.array([constant.high for constant in self.constants])
        pairs = []
        for variance, direction in zip(variances, directions.T, strict=True):
            shift = NORMAL_90 * sqrt(max(variance, 0.0)) * direction
            if np.abs(shift).max() < LEAST_SHARE:
                continue
            both = (np.clip(self.values * np.exp(s * shift), low, high) for s in (-1, 1))
            down, up = (by_key(self.constants, end) for end in both)
            pairs.append((down, up))
        return pairs

    def known(self) -> Known:
        """Residual and tables, for intervals."""
        fitted = Calibration(data="what was not left out", tables=self.tables)
        return Known("refitted", fitted.model_copy(update={"residual": self.residual}))


def refitted(fit: Fit, noise: float, tables: dict[str, list[int]]) -> Refitted:
    """Wrap a fit; its residual is at least the noise of the data."""
    residual = max(fit.noise, noise)
    return Refitted(fit.constants, fit.values, fit.covariance, residual, tables)


# Fits to tables -----------------------------------------------------------------------------------


def bare_cost(item: Item) -> tuple[Scenario, list[Known]]:
    """Strip an item to an unmeasured cluster, keeping the settings of its own."""
    bare, known = as_unmeasured(item.made)
    chosen = item.table.set if item.is_table else item.point.set
    own = {key: value for key, value in chosen.items() if key.startswith(COST)}
    return (with_values(bare, bare.resolved(), own, item.place) if own else bare), known


def fitting_tables(remaining: Sequence[Item]) -> list[Item]:
    """Tables for a fit: all remaining ones with NCCL's cost and several ranks."""
    timed = (i for i in remaining if i.is_table and isinstance(i.made.collectives.cost, NcclCost))
    return [item for item in timed if item.made.cluster.world_size > 1]


def refit_tables(remaining: Sequence[Item], noise: float) -> Refitted | None:
    """Fit NCCL's constants to the remaining tables of a cluster; None if there are none.

    ``noise`` is that of the cluster's measurements.
    """
    tables = fitting_tables(remaining)
    if not tables:
        return None
    parts = [_Rows(item) for item in tables]
    points = [point for part in parts for point in part.points]
    template = max(parts, key=lambda part: part.reach).typical
    constants = nccl_constants(template, points, is_given=True)
    keys, base = [constant.key for constant in constants], typical_values(template, points)

    def predict(values: Floats) -> Floats:
        now = {**base, **dict(zip(keys, values, strict=True))}
        return np.concatenate([part.seconds(now) for part in parts])

    measured = np.array([seconds for part in parts for seconds in part.measured])
    table_fit = fit(predict, measured, constants, restraints=restraints(constants, base))
    fitted = grouped((item.table.collective, item.made.cluster.num_nodes) for item in tables)
    named = tuple(replace(part, key=f"{COST}{part.key}") for part in table_fit.constants)
    return refitted(table_fit, noise, fitted)._replace(constants=named)


class _Rows:
    """Rows of a table for a fit."""

    def __init__(self, item: Item) -> None:
        (typical, _), (made, _) = as_unmeasured(item.made), bare_cost(item)
        cost = made.collectives.cost
        assert isinstance(cost, NcclCost)
        assert isinstance(typical.collectives.cost, NcclCost)
        self.typical = typical.collectives.cost
        self.reach = item.made.cluster.num_nodes > 1, item.made.cluster.local_size > 1
        wiring, table = wiring_of(made.cluster), item.table
        rows = [
            (nbytes, seconds)
            for (nbytes, seconds), role in zip(table.times, table.roles(), strict=True)
            if table.calibration == "none" or role == "calibration"
        ]
        self.points = [
            CalibrationPoint(table.collective, float(nbytes), wiring) for nbytes, _ in rows
        ]
        self.measured = [seconds for _, seconds in rows]
        own = [key.removeprefix(COST) for key in table.set if key.startswith(COST)]
        self.own = {
            key: value
            for key, value in typical_values(cost, self.points).items()
            if any(key == own_key or key.startswith(f"{own_key}.") for own_key in own)
        }
        self._candidates = Candidates(cost, self.points)

    def seconds(self, constants: Mapping[str, float]) -> Floats:
        return self._candidates.seconds({**constants, **self.own})
