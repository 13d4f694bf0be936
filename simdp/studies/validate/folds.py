"""Folds: what is left out together, so that nothing of it is known when it is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from json import dumps, loads
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from simdp.cluster.machine import read_machine
from simdp.errors import ScenarioError
from simdp.reports.captions import model_name
from simdp.scenario import Scenario
from simdp.scenario.measured import Measured, MeasuredCollective, MeasuredPoint
from simdp.studies.validate.files import cluster_name
from simdp.studies.validate.jobs import with_common_workloads
from simdp.workload.models import PRESETS

By = Literal["model", "nodes", "collective", "cluster"]

BY: tuple[By, ...] = get_args(By)


class Item(NamedTuple):
    """A point, or a table, of a scenario.

    Attributes
    ----------
    file, name : str
        The scenario's.
    measured : Measured
        All that it says was measured.
    number : int
        Of the point or the table, from 0.
    made : Scenario
        The point or the table as a scenario.
    is_table : bool
        Which of the two it is.
    """

    file: str
    name: str
    measured: Measured
    number: int
    made: Scenario
    is_table: bool

    @property
    def point(self) -> MeasuredPoint:
        """What was measured, of a point."""
        return self.measured.points[self.number]

    @property
    def table(self) -> MeasuredCollective:
        """What was measured, of a table."""
        return self.measured.collectives[self.number]

    @property
    def key(self) -> tuple[str, bool, int]:
        """What tells it from all others."""
        return self.file, self.is_table, self.number

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.file}: measured.{'collectives' if self.is_table else 'points'}.{self.number}"

    @property
    def machine(self) -> str:
        """The cluster within which something is left out."""
        named = self.measured.cluster if self.is_table else None
        return named or cluster_name(self.name, self.made)

    @property
    def is_told(self) -> bool:
        """Whether the workload was made to meet it, as the step of a single device is."""
        if self.is_table or self.point.role == "predicted":
            return False
        own = self.measured.calibration
        workload = own is not None and any(key.startswith("workload.") for key in own.intervals)
        return workload or self.made.cluster.world_size == 1


class Fold(NamedTuple):
    """What is left out together, and what remains of its cluster."""

    name: str
    left_out: list[Item]
    remaining: list[Item]


def items_of(scenarios: Mapping[Path, Scenario]) -> list[Item]:
    """Every point and table of some scenarios, in their order."""
    found = []
    for file, scenario in scenarios.items():
        measured, (points, tables) = scenario.measured, scenario.measured_scenarios()
        assert measured is not None
        whole = str(file), scenario.name, measured
        found += [Item(*whole, i, p, False) for i, p in enumerate(with_common_workloads(points))]
        found += [Item(*whole, i, table, True) for i, table in enumerate(tables)]
    return found


def folds_of(items: Iterable[Item], by: By) -> list[Fold]:
    """Cut what was measured into folds.

    Parameters
    ----------
    items : iterable of Item
        Of all scenarios.
    by : {"model", "nodes", "collective", "cluster"}
        A fold is a model, a number of nodes or a collective of one cluster, where that has several;
        or a whole cluster.

    Raises
    ------
    ScenarioError
        If there are none.
    """
    groups: dict[str, list[Item]] = {}
    where = site_of if by == "cluster" else lambda item: item.machine
    for item in items:
        groups.setdefault(where(item), []).append(item)
    found = [fold for name, group in groups.items() for fold in _folds(name, group, by)]
    if not found:
        raise ScenarioError([_nothing(groups, by)])
    return found


def _folds(name: str, group: list[Item], by: By) -> list[Fold]:
    if by == "cluster":
        return [Fold(name, group, [])]
    parts: dict[Any, list[Item]] = {}
    for item in group:
        what = UNITS[by](item)
        if what is not None:
            parts.setdefault(what, []).append(item)
    if len(parts) < 2:
        return []
    left = {id(item): what for what, part in parts.items() for item in part}
    return [
        Fold(
            f"{SAID[by](what)} on {name}",
            part,
            [item for item in group if left.get(id(item)) != what],
        )
        for what, part in (sorted(parts.items()) if by == "nodes" else parts.items())
    ]


def _nothing(groups: Mapping[str, list[Item]], by: By) -> str:
    """Say why nothing can be left out, and what can."""
    said = []
    for name, group in groups.items():
        each = dict.fromkeys(UNITS[by](item) for item in group)
        only = [SAID[by](what) for what in each if what is not None]
        said.append(f"{name} has {'only ' + only[0] if only else NOTHING[by]}")
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    others = [
        other
        for other in BY
        if other == "cluster" or any(_folds(name, group, other) for name, group in groups.items())
    ]
    return (
        f"--leave-out {by}: nothing can be left out: {', '.join(said[:3])}{more}; give scenarios "
        f"of one cluster with several, or leave out {' or '.join(others)}."
    )


def site_of(item: Item) -> str:
    """Where something was measured: several machines may be one site."""
    machine = item.made.cluster.machine
    site = read_machine(machine, item.made.base).site if machine else None
    return site or item.measured.cluster or item.machine


def model_of(item: Item) -> str | None:
    """What a point trains; None for a table."""
    if item.is_table:
        return None
    return _name_of(dumps(item.made.resolved()["workload"]["model"]), item.made)


_NAMES: dict[str, str] = {}


def _name_of(model: str, made: Scenario) -> str:
    """Name a model: a preset, or a kind and how many parameters it has."""
    if model not in _NAMES:
        name = model_name({"model": loads(model)})
        if name not in PRESETS.names():
            count = sum(tensor.num_elements for tensor in made.workload.graph.parameters)
            kind = made.workload.model.kind
            size = f"{count / 1e6:.3g}M parameters"
            name = size if kind == "parameters" else f"{kind} of {size}"
        _NAMES[model] = name
    return _NAMES[model]


UNITS: dict[str, Callable[[Item], Any]] = {
    "model": model_of,
    "nodes": lambda item: item.made.cluster.num_nodes,
    "collective": lambda item: item.table.collective if item.is_table else None,
    "cluster": lambda item: item.machine,
}
"""What of an item is left out; None where it has nothing of the kind."""

SAID: dict[str, Callable[[Any], str]] = {
    "model": str,
    "nodes": lambda nodes: "1 node" if nodes == 1 else f"{nodes} nodes",
    "collective": str,
    "cluster": str,
}

NOTHING = {"model": "no steps", "collective": "no tables"}
