"""Asked: what a plan is told, and what it chooses from where nobody says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from simdp.cluster import Cluster
from simdp.cluster.machine import MACHINES
from simdp.errors import ScenarioError, UnitError, shown, unknown_name
from simdp.job.target.loss import LossReached
from simdp.results.plan import GOALS
from simdp.scenario import Scenario
from simdp.scenario.machines import MACHINE
from simdp.studies.plan.chances import LIMITED
from simdp.studies.plan.space import ACCUM, MICRO, NODES, WORLD
from simdp.studies.ranges import parse_sizes, parse_world_sizes
from simdp.units import format_percent, parse, parse_percent

DEFAULT_NODES = [1, 2, 4, 8, 16, 32, 64]

DEFAULT_MICRO = [1, 2, 4, 8, 16, 32, 64, 128]

STRATEGIES = ["ddp", "zero1", "zero2", "fsdp", "hsdp"]

MAX_POINTS = 500_000
"""More of them would take too long to look at each; see `sampling`."""


@dataclass(frozen=True)
class Asked:
    """What ``python -m simdp plan`` is told.

    Attributes
    ----------
    goal : str
        A key of `GOALS`.
    deadline, budget, energy, memory : float or None
        Of the whole job [s], [USD], [kWh]; of a rank's peak [bytes].
    choices : mapping of str to sequence
        Dotted keys, or ``nodes``, and the values to choose from; empty is the usual ones.
    global_batch : int or None
        Samples of a step; left out, the scenario's.
    sure : float or None
        With which probability an option must meet deadline, budget and energy, from 0.5; None: its
        mean must.
    """

    goal: str = "cheapest"
    deadline: float | None = None
    budget: float | None = None
    energy: float | None = None
    memory: float | None = None
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    global_batch: int | None = None
    sure: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """What is limited, by name."""
        named = {name: getattr(self, name) for name in ("deadline", "budget", "energy", "memory")}
        return {name: value for name, value in named.items() if value is not None}


QUANTITIES = {"deadline": "time", "memory": "data size", "budget": "money"}


def parse_limit(name: str, text: str) -> float:
    """Read a limit: ``"3 days"``, ``"10000 USD"``, ``"500 kWh"``, ``"60 GB"``.

    Raises
    ------
    ScenarioError
        If it is none.
    """
    option = f"--{'max-' * (name == 'memory')}{name}"
    if name == "energy":
        number = text.strip().removesuffix("kWh").strip().replace(",", "")
        try:
            value = float(number) if text.strip().endswith("kWh") else nan
        except ValueError:
            value = nan
    else:
        try:
            value = parse(text, QUANTITIES[name])
        except UnitError as error:
            raise ScenarioError([f"{option} {text}: {error}"]) from None
    if not isfinite(value) or value <= 0:
        examples = {"budget": "10000 USD", "energy": "500 kWh", "deadline": "3 days"}
        example = examples.get(name, "60 GB")
        raise ScenarioError([f"{option} {text}: is no such quantity above 0; write {example}."])
    return value


def parse_sure(text: str) -> float:
    """Read a probability: ``"90%"``.

    Raises
    ------
    ScenarioError
        If it is none.
    """
    try:
        return parse_percent(text)
    except UnitError as error:
        raise ScenarioError([f"--sure {text}: {error}"]) from None


def doubled(key: str, text: str) -> list[Any]:
    """Read a range that doubles: ``"1:64"``, or ``"1MiB:1GiB"``.

    Raises
    ------
    ScenarioError
        If it is none.
    """
    first = text.split(":")[0]
    try:
        if first.isdecimal():
            return list(parse_world_sizes(text))
        return [f"{size} B" for size in parse_sizes(text)]
    except ScenarioError as error:
        lines = [line.split(": ", 1)[-1] for line in error.problems]
        raise ScenarioError([f"--choose {key}={text}: {line}" for line in lines]) from None


def checked_choices(choices: Mapping[str, Sequence[Any]]) -> None:
    """Refuse choices that are none.

    Raises
    ------
    ScenarioError
        With every problem.
    """
    known, found = [*Scenario.model_fields, NODES], []
    for key, values in choices.items():
        first = key.split(".")[0]
        if first not in known or first in ("sweep", "name", "measured", "target"):
            line = unknown_name("key", first, [k for k in known if k not in ("sweep", "measured")])
            found.append(f"--choose {key}: {line}")
        elif not values:
            found.append(f"--choose {key}: has no value; write {key}=V1,V2.")
        elif len({repr(value) for value in values}) < len(values):
            found.append(f"--choose {key}: has a value twice; write each once.")
        elif key == NODES:
            wrong = [v for v in values if not isinstance(v, int) or isinstance(v, bool) or v < 1]
            if wrong:
                found.append(
                    f"--choose nodes: {shown(wrong[0])} is no whole number of 1 or more; write "
                    "nodes=1,2,8."
                )
    if NODES in choices and WORLD in choices:
        found.append(f"--choose nodes: says how many ranks there are, as {WORLD} does; keep one.")
    if found:
        raise ScenarioError(found)


def usual_choices(scenario: Scenario, goal: str) -> dict[str, list[Any]]:
    """What to choose from, where nobody says."""
    strategies: list[Any] = [kind for kind in STRATEGIES if kind != scenario.strategy.kind]
    own = scenario.strategy.model_dump(mode="json", exclude_defaults=True)
    found: dict[str, list[Any]] = {
        MACHINE: machines_for(goal),
        NODES: DEFAULT_NODES,
        "strategy": [own if len(own) > 1 else scenario.strategy.kind, *strategies],
    }
    if not scenario.workload.model.timed:
        found[MICRO] = DEFAULT_MICRO
        if scenario.workload.graph.blocks:
            found["workload.recompute"] = ["none", "blocks"]
    return found


def machines_for(goal: str) -> list[str]:
    """Machines of the catalogue of which somebody says what the goal needs."""
    return [name for name in MACHINES.names() if _is_told(name, goal)]


def _is_told(name: str, goal: str) -> bool:
    if goal == "fastest":
        return True
    cluster = {**dict(MACHINES.read(name)["cluster"]), "world_size": 1, "stragglers": []}
    rates = Cluster.model_validate(cluster).rates()
    return rates.price is not None if goal == "cheapest" else rates.has_power


def refuse(scenario: Scenario, asked: Asked) -> None:
    """Refuse what a plan cannot be made of.

    Raises
    ------
    ScenarioError
        With every problem.
    """
    found = []
    if asked.goal not in GOALS:
        found.append(f"--for: {unknown_name('goal', asked.goal, list(GOALS))}")
    for name in ("deadline", "budget", "energy"):
        if name in asked.limits and scenario.target is None:
            found.append(
                f"--{name}: the scenario does not say what is to be reached; add target: "
                "{samples: 1e9}, or {epochs: 90}, or {benchmark: bert}."
            )
    if asked.sure is not None and not 0.5 <= asked.sure < 1:
        found.append(
            f"--sure {format_percent(asked.sure)}: is out of range; write a probability from 50% "
            "to 99.9%."
        )
    if asked.sure is not None and not any(name in asked.limits for name in LIMITED):
        found.append(
            "--sure: there is no limit that options could meet; add --deadline, --budget or "
            "--energy."
        )
    if isinstance(scenario.target, LossReached):
        found.append(
            "target.loss: only a run that learns tells when it is reached; write {samples: ...} "
            "for a plan."
        )
    if scenario.workload.mode != "training":
        found.append("workload.mode: a plan is for training; leave mode out.")
    if scenario.neighbours:
        found.append("neighbours: a plan has no other jobs beside it; leave them out.")
    if asked.global_batch is not None and ACCUM in asked.choices:
        found.append(
            f"--global-batch: is kept by the number of micro-steps, and --choose has {ACCUM}; "
            "leave one out."
        )
    if found:
        raise ScenarioError(found)
