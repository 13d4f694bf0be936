"""Options of `plan`, its search space, and infeasible points.

Runs to the same target differ by chance, in their samples and failures. In addition the simulated
step has a 90 % interval. Both multiply the time to the target, and with it cost and energy.

A change of settings may change the loss after the same number of samples (`LearningSettings`).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite, log, nan, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.cluster.hardware import MACHINES, read_machine
from simdp.errors import LedBy, ScenarioError, shown, unknown_name
from simdp.job.targets import LossReached, SamplesNeeded
from simdp.keys import written
from simdp.results.metrics import Rates
from simdp.results.plan import GOALS, InfeasiblePoints, Option
from simdp.scenario import checked
from simdp.scenario.overrides import MACHINE, Raw, grid
from simdp.scenario.root import Scenario
from simdp.spec import Spec, unknown_key
from simdp.studies.variants import parse_sizes, parse_world_sizes
from simdp.units import format_percent, parse, parse_percent
from simdp.workload.layers.batchnorm import BatchNorm

BATCH_OPTION = "--global-batch"

KEY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*): ")  # the key that leads a line of a `ScenarioError`


class Infeasible(NamedTuple):
    """Why a point is infeasible; the reason is the same for all points of one cause.

    ``option`` is the option or key whose change may make it feasible. Where the global ``batch`` is
    not a multiple of GPUs times micro-batch, that is the ``divisor``; else 0.
    """

    reason: str
    option: str | None = None
    divisor: int = 0
    batch: int = 0

    @classmethod
    def of_line(cls, line: str) -> Infeasible:
        """Make it from a line of a `ScenarioError`, led by a key."""
        match = KEY.match(line)
        return cls(line, match[1] if match else None)

    @classmethod
    def of_batch(cls, batch: int, world_size: int, microbatch: int) -> Infeasible:
        """Make it for a global batch that is not divisible into whole micro-steps."""
        reason = f"a global batch of {batch:,} is no multiple of GPUs x micro-batch"
        return cls(reason, BATCH_OPTION, world_size * microbatch, batch)


def summed(
    counts: Mapping[Infeasible, int], divisors: Mapping[int, int] | None = None
) -> list[InfeasiblePoints]:
    """Count points by reason, the most frequent reason first.

    ``divisors`` counts the feasible points by GPUs times micro-batch; the option of a batch has the
    value that makes most points feasible.
    """
    groups: dict[tuple[str, str | None], dict[Infeasible, int]] = {}
    for infeasible, count in counts.items():
        groups.setdefault((infeasible.reason, infeasible.option), {})[infeasible] = count
    rows = [
        InfeasiblePoints(reason, sum(group.values()), _freeing(option, group, divisors or {}))
        for (reason, option), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.reason))


def _freeing(
    option: str | None, group: Mapping[Infeasible, int], possible: Mapping[int, int]
) -> str | None:
    """An option, with a value if one is known."""
    divisors = Counter(
        {infeasible.divisor: count for infeasible, count in group.items() if infeasible.divisor}
    )
    if not divisors:
        return option
    batch = next(iter(group)).batch
    tried = {-(-batch // divisor) * divisor for divisor in divisors}
    everyone = divisors + Counter(possible)
    freed = {
        value: sum(count for divisor, count in everyone.items() if value % divisor == 0)
        for value in tried
    }
    best = min(freed, key=lambda value: (-freed[value], value))
    return f"{option} {best}"


# Probabilities ------------------------------------------------------------------------------------

QUANTILES = 201  # number of equally probable values of a distribution

Z90 = 1.6448536269514722
"""Standard deviations of a normal distribution from its mean to the ends of 90 %."""

LIMITED = {"deadline": "finish_s", "budget": "cost_usd", "energy": "energy_kwh"}
"""Limits that are met with a probability, and the field of an option that each applies to."""


def luck_of(need: SamplesNeeded) -> Floats:
    """Samples of single runs over their mean, at equally probable quantiles, ascending."""
    if not need.sd:
        return np.ones(1)
    return np.array([need.quantile(float(p)) for p in _places()]) / need.mean


def chance(option: Option, limits: Mapping[str, float], factors: Floats) -> float | None:
    """Probability that an option meets deadline, budget and energy together; None without a limit.

    ``factors`` are equally probable factors on all three, from `factors_of`.
    """
    allowed = inf
    for name, metric in LIMITED.items():
        if name in limits:
            value = option.value(metric)
            allowed = min(allowed, limits[name] / value if value else -inf)
    return None if allowed == inf else float((factors <= allowed * (1 + 1e-12)).mean())


def factors_of(luck: Floats, ends: tuple[float, float] | None) -> Floats:
    """Combine the factors on the time to the target.

    ``luck`` are times of single runs over their mean; ``ends`` is the 90 % interval of a step
    relative to its time, whose logarithm is taken as normal on each side.
    """
    if ends is None:
        return luck
    z = _normal() / Z90
    low, high = log(max(ends[0], 1e-9)), log(max(ends[1], 1e-9))
    step = np.exp(np.where(z < 0, -z * min(low, 0.0), z * max(high, 0.0)))
    return np.outer(luck, step).ravel()


@cache
def _places() -> Floats:
    return (np.arange(QUANTILES) + 0.5) / QUANTILES


@cache
def _normal() -> Floats:
    from scipy.special import ndtri

    return ndtri(_places())


# Space --------------------------------------------------------------------------------------------

NODES = "nodes"  # key for numbers of whole nodes; the machine gives their size

WORLD, MICRO, ACCUM, BATCH = (
    "cluster.world_size",
    "workload.microbatch",
    "workload.grad_accum",
    "workload.global_batch",
)

NETWORK = ("cluster", "collectives")  # sections that a step's operations hardly depend on


class PlanPoint(NamedTuple):
    """One point of a grid, with its settings by dotted key, including derived ones.

    ``microbatch`` is 0 where ranks have different numbers of samples.
    """

    number: int
    settings: dict[str, Any]
    world_size: int
    microbatch: int
    micro_steps: int


class Space:
    """Search space of a plan.

    ``raw`` is the scenario as plain data, without sweep and measurements; ``choices`` has the
    values of dotted keys, or of `NODES`; ``global_batch`` is kept at every point unless ``choices``
    decide.
    """

    def __init__(
        self,
        raw: Raw,
        base: Path,
        choices: Mapping[str, Sequence[object]],
        global_batch: int | None,
    ) -> None:
        self.raw, self.base = raw, base
        self.choices = {key: list(values) for key, values in choices.items()}
        self.global_batch = global_batch
        self._per_node: dict[str | None, tuple[int, bool]] = {}

    def __len__(self) -> int:
        return prod(map(len, self.choices.values()))

    def points(self) -> Iterator[PlanPoint | Infeasible]:
        """Yield every point, or why it is infeasible."""
        for number, values in enumerate(itertools.product(*self.choices.values())):
            yield self.point(number, dict(zip(self.choices, values, strict=True)))

    def point(self, number: int, chosen: Raw) -> PlanPoint | Infeasible:
        """Make one point, or why it is infeasible."""
        settings = dict(chosen)
        try:
            size = self._world_size(settings)
        except ScenarioError as error:
            return Infeasible.of_line(error.problems[0])
        if isinstance(size, Infeasible):
            return size
        settings[WORLD] = size
        workload = self.raw["workload"]
        batch = settings.get(BATCH, self.global_batch)
        accum = settings.get(ACCUM, workload.get("grad_accum", 1))
        micro = settings.get(MICRO, workload.get("microbatch"))
        if (ACCUM in settings or batch is None) and micro and isinstance(accum, int):
            return PlanPoint(number, settings, size, micro, accum)
        if not isinstance(batch, int):
            return PlanPoint(number, settings, size, 0, 1)
        if not micro:
            return self._cut(number, settings, size, batch, accum)
        if batch % (micro * size):
            return Infeasible.of_batch(batch, size, micro)
        settings |= {MICRO: micro, ACCUM: batch // (micro * size)}
        if "global_batch" in workload or BATCH in settings:
            settings[BATCH] = None
        return PlanPoint(number, settings, size, micro, batch // (micro * size))

    def _cut(self, number: int, settings: Raw, size: int, batch: int, accum: object) -> PlanPoint:
        """Make a point with the micro-batch that follows from the global batch."""
        settings[BATCH] = batch
        if not isinstance(accum, int) or batch % (size * accum):
            return PlanPoint(number, settings, size, 0, 1)
        return PlanPoint(number, settings, size, batch // (size * accum), accum)

    def _world_size(self, settings: Raw) -> int | Infeasible:
        """Ranks of a point; removes `NODES` from its settings."""
        nodes = settings.pop(NODES, None)
        if nodes is None:
            given = settings.get(WORLD, self.raw["cluster"].get("world_size"))
            if not isinstance(given, int):
                return Infeasible(f"{WORLD} is not a number", WORLD)
            return given
        machine = settings.get(MACHINE, self.raw["cluster"].get("machine"))
        if machine not in self._per_node:
            brought = read_machine(machine, self.base).cluster if machine is not None else {}
            cluster = {**brought, **self.raw["cluster"]}
            held = cluster.get("devices_per_node") or 1
            held *= cluster.get("ranks_per_device", 1)
            self._per_node[machine] = held, "inter_node" in cluster
        held, networked = self._per_node[machine]
        if nodes > 1 and not networked:
            reason = f"{machine or 'the cluster'} is one node, without a network"
            return Infeasible(reason, "cluster.inter_node")
        return int(nodes * held)

    def raw_of(self, settings: Mapping[str, object]) -> Raw:
        """A scenario with settings, as plain data, merged with its machine."""
        swept = {key: [value] for key, value in settings.items()}
        ((_, raw),) = grid({**self.raw, "sweep": swept}, self.base)
        workload = raw["workload"]
        for key in ("microbatch", "global_batch"):
            if workload.get(key, 0) is None:
                del workload[key]
        return raw

    def scenario(self, settings: Mapping[str, object]) -> Scenario:
        """Make a scenario with settings; a ScenarioError if it is invalid."""
        return checked(self.raw_of(settings), self.base)

    def steady(self, settings: Mapping[str, object]) -> Scenario:
        """Make a scenario with the steady steps of a long job; a ScenarioError if it is invalid.

        It starts after the warm-up of its strategy, and has whole periods of it.
        """
        scenario = self.scenario(settings)
        strategy, workload = scenario.strategy.after_warmup(), scenario.workload
        changed: dict[str, Any] = {}
        if strategy is not scenario.strategy:
            changed["strategy"] = strategy
        if strategy.steps_together > 1 and workload.steps is not None:
            steps = strategy.whole_periods(workload.steps)
            changed["workload"] = workload.model_copy(update={"steps": steps})
        return scenario.model_copy(update=changed) if changed else scenario


def network_part(settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of cluster and collectives."""
    return {key: value for key, value in settings.items() if key.split(".")[0] in NETWORK}


def recipe_part(settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of each rank's work, without the batch."""
    batch = (MICRO, ACCUM, BATCH)
    return {
        key: value
        for key, value in settings.items()
        if key.split(".")[0] not in NETWORK and key not in batch
    }


# Options ------------------------------------------------------------------------------------------

DEFAULT_NODES = [1, 2, 4, 8, 16, 32, 64]

DEFAULT_MICRO = [1, 2, 4, 8, 16, 32, 64, 128]

STRATEGIES = ["ddp", "zero1", "zero2", "fsdp", "hsdp"]

MAX_POINTS = 500_000  # most points that are all bounded; larger spaces are sampled (`sampled`)


@dataclass(frozen=True)
class PlanRequest:
    """Options of ``python -m simdp plan``."""

    goal: str = "cheapest"
    """A key of `GOALS`."""
    deadline: float | None = None
    """Limits of the whole job [s], [USD], [kWh]; of a rank's peak [bytes]."""
    budget: float | None = None
    """Limits of the whole job [s], [USD], [kWh]; of a rank's peak [bytes]."""
    energy: float | None = None
    """Limits of the whole job [s], [USD], [kWh]; of a rank's peak [bytes]."""
    memory: float | None = None
    """Limits of the whole job [s], [USD], [kWh]; of a rank's peak [bytes]."""
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Dotted keys, or ``nodes``, and their values; by default `usual_choices`."""
    global_batch: int | None = None
    """Samples of a step; by default the scenario's."""
    sure: float | None = None
    """Least probability of meeting deadline, budget and energy, from 0.5; None compares means."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        named = {name: getattr(self, name) for name in ("deadline", "budget", "energy", "memory")}
        return {name: value for name, value in named.items() if value is not None}


QUANTITIES = {"deadline": "time", "budget": "money"}
QUANTITIES |= {"memory": "data size", "host-memory": "data size"}
EXAMPLES = {"deadline": "3 days", "budget": "10000 USD", "energy": "500 kWh"}
EXAMPLES |= {"memory": "60 GB", "host-memory": "500 GB"}


def parse_limit(name: str, text: str) -> float:
    """Read a limit above 0: ``"3 days"``, ``"10000 USD"``, ``"500 kWh"``, ``"60 GB"``.

    A ScenarioError if it is no such quantity.
    """
    option = f"--{'max-' * (name == 'memory')}{name}"
    if name == "energy":
        number = text.strip().removesuffix("kWh").strip().replace(",", "")
        try:
            value = float(number) if text.strip().endswith("kWh") else nan
        except ValueError:
            value = nan
    else:
        with LedBy(f"{option} {text}: "):
            value = parse(text, QUANTITIES[name], EXAMPLES.get(name))
    if not isfinite(value) or value <= 0:
        raise ScenarioError(f"{option} {text}: is not a quantity above 0; write {EXAMPLES[name]}.")
    return value


def parse_sure(text: str) -> float:
    """Read a probability: ``"90%"``; a ScenarioError if it is not one."""
    with LedBy(f"--sure {text}: "):
        return parse_percent(text)


def doubled(key: str, text: str) -> list[Any]:
    """Read a range by doubling: ``"1:64"``, or ``"1MiB:1GiB"``; else a ScenarioError."""
    first = text.split(":")[0]
    try:
        if first.isdecimal():
            return list(parse_world_sizes(text))
        return [f"{size} B" for size in parse_sizes(text)]
    except ScenarioError as error:
        lines = [line.split(": ", 1)[-1] for line in error.problems]
        raise ScenarioError([f"--choose {key}={text}: {line}" for line in lines]) from None


def checked_choices(choices: Mapping[str, Sequence[object]]) -> None:
    """Check the keys and values of choices; a ScenarioError has every problem."""
    known, lines = [*Scenario.model_fields, NODES], []
    for key, values in choices.items():
        first = key.split(".")[0]
        if first not in known or first in ("sweep", "name", "measured", "target"):
            allowed = [name for name in known if name not in ("sweep", "measured")]
            line = unknown_key(first, allowed, Scenario)
            lines.append(f"--choose {key}: {line}")
        elif not values:
            lines.append(f"--choose {key}: has no value; write {key}=V1,V2.")
        elif len({repr(value) for value in values}) < len(values):
            lines.append(f"--choose {key}: has a value twice; write each once.")
        elif key == NODES:
            wrong = [v for v in values if not isinstance(v, int) or isinstance(v, bool) or v < 1]
            if wrong:
                lines.append(
                    f"--choose nodes: {shown(wrong[0])} is not a whole number of 1 or more; write "
                    "nodes=1,2,8."
                )
    if NODES in choices and WORLD in choices:
        lines.append(f"--choose nodes: sets the number of ranks, as {WORLD} does; keep one.")
    if lines:
        raise ScenarioError(lines)


def usual_choices(scenario: Scenario, goal: str) -> dict[str, list[Any]]:
    """Default choices."""
    kind = scenario.strategy.kind
    options = scenario.strategy.model_dump(mode="json", exclude_defaults=True)
    own = {"kind": kind, **options} if options else kind
    choices: dict[str, list[Any]] = {
        MACHINE: machines_for(goal),
        NODES: DEFAULT_NODES,
        "strategy": [own, *(strategy for strategy in STRATEGIES if strategy != own)],
    }
    if not scenario.workload.model.timed:
        choices[MICRO] = DEFAULT_MICRO
        if scenario.workload.graph.blocks:
            choices["workload.recompute"] = ["none", "blocks"]
    return choices


def machines_for(goal: str) -> list[str]:
    """Machines of the catalogue with known price (cheapest) or power (greenest)."""
    clusters = zip(MACHINES.names(), catalogue_clusters(), strict=True)
    return [name for name, cluster in clusters if has_figure(cluster.rates(), goal)]


def catalogue_clusters() -> Iterator[Cluster]:
    """Yield a cluster of one rank of every machine of the catalogue."""
    for name in MACHINES.names():
        cluster = {**dict(MACHINES.read(name)["cluster"]), "world_size": 1, "stragglers": []}
        yield Cluster.model_validate(cluster)


def has_figure(rates: Rates, goal: str) -> bool:
    """Whether the price (cheapest) or the power (greenest) that a goal needs is known."""
    if goal == "fastest":
        return True
    return rates.price is not None if goal == "cheapest" else rates.has_power


def refuse(scenario: Scenario, request: PlanRequest) -> None:
    """Raise a ScenarioError with every reason why no plan can be made."""
    problems = []
    if request.goal not in GOALS:
        problems.append(f"--for: {unknown_name('goal', request.goal, list(GOALS))}")
    for name in ("deadline", "budget", "energy"):
        if name in request.limits and scenario.target is None:
            problems.append(
                f"--{name}: the scenario has no target; add target: "
                "{samples: 1e9}, or {epochs: 90}, or {benchmark: bert}."
            )
    if request.sure is not None and not 0.5 <= request.sure < 1:
        problems.append(
            f"--sure {format_percent(request.sure)}: is out of range; write a probability from 50% "
            "to 99.9%."
        )
    if request.sure is not None and not any(name in request.limits for name in LIMITED):
        problems.append(
            "--sure: needs a limit that options can meet; add --deadline, --budget or --energy."
        )
    if isinstance(scenario.target, LossReached):
        problems.append(
            "target.loss: is only known from a run that learns; write {samples: ...} for a plan."
        )
    if scenario.workload.mode != "training":
        problems.append("workload.mode: a plan is for training; leave mode out.")
    if scenario.neighbours:
        problems.append("neighbours: a plan simulates no other jobs; leave them out.")
    if request.global_batch is not None and ACCUM in request.choices:
        problems.append(
            f"--global-batch: sets the number of micro-steps, as --choose {ACCUM} does; "
            "leave one out."
        )
    if problems:
        raise ScenarioError(problems)


SAME_RESULT = {
    "attention",
    "compile",
    "compute",
    "cuda_graphs",
    "global_batch",
    "grad_accum",
    "host",
    "input",
    "microbatch",
    "recompute",
    "steps",
}
"""Keys of the workload that affect times only; the batch is compared as a whole."""

PRECISION = {"dtype", "precision"}


class LearningSettings:
    """Settings of a scenario that affect learning and that a plan may change."""

    def __init__(self, scenario: Scenario, global_batch: int) -> None:
        workload, strategy = scenario.workload, scenario.strategy
        self.traits = {
            "global batch": f"{global_batch:,}",
            "averaging": strategy.averaging(),
            "gradients are sent": strategy.sent_as(),
            "precision": _precision(scenario),
        }
        if workload.lr_scaling != "none":
            n = scenario.cluster.world_size
            self.traits["learning rate"] = f"scaled for {n} ranks ({workload.lr_scaling})"
        norms = any(isinstance(call.layer, BatchNorm) for call in workload.graph.calls)
        if norms and not workload.sync_batchnorm and not strategy.in_one_process:
            batch = workload.microbatch or global_batch // scenario.cluster.world_size
            self.traits["batch norm"] = f"statistics of {batch} samples"
        self.keys = workload.model_dump(mode="json")

    def changes(self, other: LearningSettings) -> list[str]:
        """List differences from another scenario, as ``"global batch: 512 in place of 256"``."""
        names = dict.fromkeys([*self.traits, *other.traits])
        settings = [
            (name, other.traits.get(name, "none"), self.traits.get(name, "none")) for name in names
        ]
        settings += [
            (key, written(other.keys[key]), written(self.keys[key]))
            for key in self.keys
            if key not in SAME_RESULT | PRECISION and other.keys.get(key) != self.keys[key]
        ]
        return [f"{name}: {new} in place of {old}" for name, new, old in settings if new != old]


def _precision(scenario: Scenario) -> str:
    workload = scenario.workload
    parts: list[str] = [workload.dtype]
    if workload.precision.kind != "full":
        parts.append(written(workload.precision.model_dump(mode="json", exclude_none=True)))
    for key, value in scenario.strategy.precision_options.items():
        plain = value.model_dump(mode="json") if isinstance(value, Spec) else value
        parts.append(f"{key} {written(plain)}")
    return ", ".join(parts)
