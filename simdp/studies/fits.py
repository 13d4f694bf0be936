"""Fits: which methods train a model on so many devices, how full these get, and how fast it goes.

A stack of equal blocks is followed at two depths and two sizes of micro-batch, from which its
memory at all others follows exactly (`simdp.engine.phases`); times are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from simdp.cluster.device import DEVICES
from simdp.cluster.machine import MACHINES, describe, read_machine
from simdp.engine.outcome import rates
from simdp.engine.phases import EDGE, Phase, peaks_by_phase
from simdp.engine.simulate import play
from simdp.errors import ScenarioError, unknown_name
from simdp.results.fitting import Fitting, FittingRow
from simdp.results.metrics import steady_step_time
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario, checked
from simdp.scenario.overrides import override_all
from simdp.strategies import AnyStrategy, Strategy
from simdp.studies.first_scenario import (
    Answers,
    known_size,
    known_value,
    raw_of,
    usual_precision,
    with_data,
)
from simdp.workload.models import AnyModel, Model

LARGEST_BATCH = 256
"""Samples of a micro-batch that are tried at most."""

STEPS = 2
"""The first is warm-up."""

DEPTHS = 2 * EDGE, 2 * EDGE + 1
"""Of the short stacks."""

METHODS: tuple[Any, ...] = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
"""Strategies that are tried."""

RECOMPUTE = ("none", "blocks")

Curve = tuple[float, float]
"""Bytes without samples, and per sample."""


class Asked(NamedTuple):
    """What ``python -m simdp fits`` is told.

    Attributes
    ----------
    model : value
        As in YAML.
    gpus : int
        Number of ranks.
    machine, device : str or None
        One of the two: a machine, or a device whose usual links are assumed.
    sequence_length, microbatch : int or None
        Tokens of a sample; samples of a micro-batch, in place of as many as fit.
    """

    model: Any
    gpus: int
    machine: str | None = None
    device: str | None = None
    sequence_length: int | None = None
    microbatch: int | None = None


def machine_with(device: str) -> str:
    """Choose the machine of the catalogue whose links are assumed for a device.

    NVIDIA's own nodes come first, then those with the most devices.

    Raises
    ------
    ScenarioError
        If there is no such device, or no machine has it.
    """
    if device not in DEVICES.names():
        line = unknown_name("device", device, DEVICES.names())
        raise ScenarioError([f"--device: {line}"])
    found = []
    for name in MACHINES.mentioning(device):
        cluster = read_machine(name, Path()).cluster
        if cluster.get("device") == device:
            networked = "inter_node" in cluster
            per_node = cluster.get("devices_per_node", 1)
            found.append((not networked, not name.startswith("dgx"), -per_node, name))
    if not found:
        raise ScenarioError(
            [
                f"--device {device}: no machine of the catalogue has it, so that its links are "
                "not known; give --machine FILE.yaml with its cluster."
            ]
        )
    return min(found)[-1]


def fitting(asked: Asked) -> Fitting:
    """Try every method.

    Raises
    ------
    ScenarioError
        If what is asked for does not exist, or does not go together.
    """
    if (asked.machine is None) == (asked.device is None):
        which = "neither" if asked.machine is None else "both"
        raise ScenarioError([f"--device, --machine: {which} given; give one of them."])
    machine = asked.machine or machine_with(asked.device or "")
    known_size(machine, asked.gpus)
    known_value("MODEL", asked.model)
    stacks = _Stacks(asked, machine)
    rows = [row for trial in _trials(stacks) if (row := trial.row()) is not None]
    whole = stacks.whole
    return Fitting(
        model=str(asked.model["kind"] if isinstance(asked.model, dict) else asked.model),
        machine=machine,
        assumed=None if asked.machine else f"links as in {machine}: {describe(machine)}",
        gpus=asked.gpus,
        memory_bytes=min(device.memory for device in whole.cluster.devices()),
        samples_are=_sample_in_words(whole),
        rows=sorted(rows, key=_worth),
    )


def _worth(row: FittingRow) -> tuple[float, ...]:
    """What fits first, the fastest of it leading; then what needs least."""
    if row.fits and row.step_time_s:
        return (0, row.step_time_s / row.microbatch, row.peak_memory_bytes)
    return (1, row.peak_memory_bytes, 0)


def _sample_in_words(scenario: Scenario) -> str:
    model = scenario.workload.model
    name = model.graph.inputs[0]
    shape = model.input_shapes()[name] or ()
    if model.num_tokens(name) is not None and shape:
        return f"{shape[0]:,} tokens"
    return " x ".join(map(str, shape)) or "one value"


class _Stacks:
    """The scenario at full depth, and as short stacks where the model is one."""

    def __init__(self, asked: Asked, machine: str) -> None:
        self.asked = asked
        field: Any = AnyModel
        model: Model = TypeAdapter(field).validate_python(asked.model)
        key = model.depth_key
        self.depth = int(getattr(model, key)) if key else 0
        answers = Answers(machine, asked.model, asked.gpus, "ddp", 1)
        raw = deepcopy(raw_of(answers, usual_precision(machine)))  # overrides act in place
        raw["workload"]["steps"] = STEPS
        if asked.sequence_length is not None:
            raw = override_all(
                raw, {"workload.model.sequence_length": asked.sequence_length}, Path()
            )
        raw = with_data(raw, 1)
        self.whole = checked(raw, Path())
        self.short: list[Scenario] = []
        if key and self.depth > DEPTHS[1]:
            for depth in DEPTHS:
                shorter = override_all(deepcopy(raw), {f"workload.model.{key}": depth}, Path())
                self.short.append(checked(shorter, Path()))


class _Trial:
    """One method."""

    def __init__(self, stacks: _Stacks, strategy: Strategy, recompute: str) -> None:
        self.stacks, self.strategy, self.recompute = stacks, strategy, recompute
        self.asked = stacks.asked

    def row(self) -> FittingRow | None:
        """How it does; None where the scenario cannot have it."""
        scenario = self._with(self.stacks.whole, 1)
        if self.strategy.problem_with(self.asked.gpus, scenario.workload):
            return None
        room = self.stacks.whole.cluster.devices()[0].memory
        curves = list(self._curves())
        size = self.asked.microbatch or _largest(curves, room)
        peak = _at(curves, size)
        fits = peak <= room
        time = _step_time(self._with(self.stacks.whole, size)) if fits else None
        found = rates(scenario, size * self.asked.gpus / time if time else None, time or 0.0)
        return FittingRow(
            self.strategy.kind,
            self.recompute,
            size,
            fits,
            peak,
            time,
            found["tokens_per_s"],
            found["mfu"],
        )

    def _with(self, scenario: Scenario, microbatch: int) -> Scenario:
        changed = {"recompute": self.recompute, "microbatch": microbatch}
        return scenario.model_copy(
            update={
                "workload": scenario.workload.model_copy(update=changed),
                "strategy": self.strategy,
            }
        )

    def _curves(self) -> Iterator[Curve]:
        """Memory by samples of a micro-batch, at every operation that may be the peak."""
        short = self.stacks.short
        if short and self._grows_by_blocks():
            shallow = [self._lines(scenario) for scenario in short]
            further = self.stacks.depth - DEPTHS[0]
            for phase, (base, slope) in shallow[0].items():
                deeper, steeper = shallow[1][phase]
                yield base + further * (deeper - base), slope + further * (steeper - slope)
            return
        yield from self._lines(self.stacks.whole).values()

    def _grows_by_blocks(self) -> bool:
        """Whether one more block is one more unit, or nothing is cut into units.

        Of buckets that end inside blocks, and of whole tensors that are dealt to ranks, short
        stacks tell nothing.
        """
        dealt = [self._with(scenario, 1).program.partition for scenario in self.stacks.short]
        if dealt[0] is None or dealt[1] is None:
            return True
        fewer, more = (set(one.units) for one in dealt if one is not None)
        return dealt[0].owners is None and fewer < more and len(more - fewer) == 1

    def _lines(self, scenario: Scenario) -> dict[Phase, Curve]:
        one, two = (peaks_by_phase(self._with(scenario, size)) for size in (1, 2))
        return {
            phase: (2 * one[phase] - two[phase], two[phase] - one[phase])
            for phase in one
            if phase in two
        }


def _trials(stacks: _Stacks) -> Iterator[_Trial]:
    cluster = stacks.whole.cluster
    field: Any = AnyStrategy
    for method in METHODS:
        if method == "hsdp" and cluster.world_size <= (cluster.devices_per_node or 1):
            continue  # one node: the same as fsdp
        strategy = TypeAdapter(field).validate_python(method)
        for recompute in RECOMPUTE:
            yield _Trial(stacks, strategy, recompute)


def _at(curves: list[Curve], samples: int) -> float:
    return max(base + slope * samples for base, slope in curves)


def _largest(curves: list[Curve], room: float) -> int:
    """The largest power of two that fits; 1 where nothing does."""
    size = 1
    while size < LARGEST_BATCH and _at(curves, 2 * size) <= room:
        size *= 2
    return size


def _step_time(scenario: Scenario) -> float:
    """Time of a steady step of the whole model [s]."""
    ends = StepEnds(scenario.cluster.world_size)
    play(scenario, TraceBuilder(keep=False, ends=ends), listen=iter)
    return steady_step_time(ends.ends())
