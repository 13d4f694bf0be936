"""Space: every point that a plan may choose, and its scenario as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from simdp.cluster.machine import read_machine
from simdp.errors import ScenarioError
from simdp.scenario import Scenario, checked
from simdp.scenario.machines import MACHINE
from simdp.scenario.overrides import Raw, grid
from simdp.studies.plan.infeasible import Infeasible

NODES = "nodes"
"""Whole nodes; what they hold follows from the machine."""

WORLD, MICRO, ACCUM, BATCH = (
    "cluster.world_size",
    "workload.microbatch",
    "workload.grad_accum",
    "workload.global_batch",
)

NETWORK = ("cluster", "collectives")
"""Sections that a step's operations hardly depend on."""


class Point(NamedTuple):
    """One point.

    Attributes
    ----------
    number : int
        In the grid, the last key running fastest.
    settings : dict
        Dotted keys of a scenario, those that follow included.
    world_size, microbatch, micro_steps : int
        Ranks, samples of each in a micro-step, and micro-steps; 0 samples where they are not equal.
    """

    number: int
    settings: dict[str, Any]
    world_size: int
    microbatch: int
    micro_steps: int


class Space:
    """All points.

    Parameters
    ----------
    raw : dict
        The scenario as plain data, without a sweep and without what was measured.
    base : Path
        Folder that relative paths start from.
    choices : mapping of str to sequence
        Dotted keys, or `NODES`, and their values.
    global_batch : int or None
        Samples of a step, which every point keeps; None where ``choices`` say.
    """

    def __init__(
        self,
        raw: Raw,
        base: Path,
        choices: Mapping[str, Sequence[Any]],
        global_batch: int | None,
    ) -> None:
        self.raw, self.base = raw, base
        self.choices = {key: list(values) for key, values in choices.items()}
        self.global_batch = global_batch
        self._per_node: dict[str | None, tuple[int, bool]] = {}

    def __len__(self) -> int:
        return prod(map(len, self.choices.values()))

    def points(self) -> Iterator[Point | Infeasible]:
        """Every point, or why it cannot be."""
        for number, values in enumerate(itertools.product(*self.choices.values())):
            yield self.point(number, dict(zip(self.choices, values, strict=True)))

    def point(self, number: int, chosen: Mapping[str, Any]) -> Point | Infeasible:
        """One point, or why it cannot be."""
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
            return Point(number, settings, size, micro, accum)
        if not isinstance(batch, int):
            return Point(number, settings, size, 0, 1)
        if not micro:
            return self._cut(number, settings, size, batch, accum)
        if batch % (micro * size):
            return Infeasible.of_batch(batch, size, micro)
        settings |= {MICRO: micro, ACCUM: batch // (micro * size)}
        if "global_batch" in workload or BATCH in settings:
            settings[BATCH] = None
        return Point(number, settings, size, micro, batch // (micro * size))

    def _cut(
        self, number: int, settings: dict[str, Any], size: int, batch: int, accum: Any
    ) -> Point:
        """A point whose micro-batches are what is left of the whole batch."""
        settings[BATCH] = batch
        even = isinstance(accum, int) and batch % (size * accum) == 0
        return Point(
            number, settings, size, batch // (size * accum) if even else 0, accum if even else 1
        )

    def _world_size(self, settings: dict[str, Any]) -> int | Infeasible:
        """Ranks of a point, whose nodes are taken out."""
        nodes = settings.pop(NODES, None)
        if nodes is None:
            given = settings.get(WORLD, self.raw["cluster"].get("world_size"))
            return given if isinstance(given, int) else Infeasible(f"{WORLD} is no number", WORLD)
        machine = settings.get(MACHINE, self.raw["cluster"].get("machine"))
        if machine not in self._per_node:
            brought = read_machine(machine, self.base).cluster if machine is not None else {}
            cluster = {**brought, **self.raw["cluster"]}
            held = cluster.get("devices_per_node") or 1
            held *= cluster.get("ranks_per_device", 1)
            self._per_node[machine] = held, "inter_node" in cluster
        held, networked = self._per_node[machine]
        if nodes > 1 and not networked:
            said = f"{machine or 'the cluster'} is one node, without a network"
            return Infeasible(said, "cluster.inter_node")
        return int(nodes * held)

    def raw_of(self, settings: Mapping[str, Any]) -> Raw:
        """A scenario with settings, as plain data, its machine taken in."""
        swept = {key: [value] for key, value in settings.items()}
        ((_, raw),) = grid({**self.raw, "sweep": swept}, self.base)
        for key in ("microbatch", "global_batch"):
            if key in raw["workload"] and raw["workload"][key] is None:
                del raw["workload"][key]
        return raw

    def scenario(self, settings: Mapping[str, Any]) -> Scenario:
        """A scenario with settings.

        Raises
        ------
        ScenarioError
            If it cannot be.
        """
        return checked(self.raw_of(settings), self.base)

    def steady(self, settings: Mapping[str, Any]) -> Scenario:
        """A scenario with settings whose steady steps are those of a long job.

        It starts after the warm-up of its strategy, and its steps are whole periods of it.

        Raises
        ------
        ScenarioError
            If it cannot be.
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


def network_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of what joins the ranks."""
    return {key: value for key, value in settings.items() if key.split(".")[0] in NETWORK}


def recipe_part(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of what each rank does, but for its batch."""
    batch = (MICRO, ACCUM, BATCH)
    return {
        key: value
        for key, value in settings.items()
        if key.split(".")[0] not in NETWORK and key not in batch
    }
