"""Fits: which methods train a model on so many devices, how full these get, and how fast it goes.

What devices keep is followed as lines in the samples of a micro-batch (`simdp.engine.phases`): of a
stack of equal blocks at two depths, from which all others follow exactly, wherever a block is a
unit of what is dealt to ranks, else of the whole model. Times are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from simdp.cluster.device import DEVICES
from simdp.cluster.machine import MACHINES, describe, read_machine
from simdp.engine.compute import Times
from simdp.engine.outcome import rates
from simdp.engine.phases import EDGE, Line, lines_by_phase
from simdp.engine.simulate import play
from simdp.errors import ScenarioError, unknown_name
from simdp.results.fitting import Fitting, FittingRow
from simdp.results.metrics import steady_step_time
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.scenario.feasibility import joint_problems
from simdp.scenario.overrides import override_all
from simdp.scenario.root import build, following
from simdp.strategies import AnyStrategy, Strategy
from simdp.studies.first_scenario import (
    Answers,
    known_size,
    known_value,
    raw_of,
    usual_precision,
    with_data_checked,
)
from simdp.workload.models import AnyModel, Model
from simdp.workload.precision import AnyPrecision

LARGEST_BATCH = 256
"""Samples of a micro-batch that are tried at most."""

STEPS = 2
"""The first is warm-up."""

DEPTHS = 2 * EDGE, 2 * EDGE + 1
"""Of the short stacks."""

RECOMPUTE = ("none", "selective", "blocks")


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
    rows = [trial.row() for trial in _trials(stacks)]
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


class _Method(NamedTuple):
    """How to train: keys of a scenario.

    Attributes
    ----------
    strategy, precision : value
        As in YAML.
    recompute : str
        Of ``workload.recompute``.
    """

    strategy: dict[str, Any]
    precision: Any
    recompute: str

    @property
    def settings(self) -> dict[str, Any]:
        """Dotted keys."""
        return {
            "strategy": self.strategy,
            "workload.precision": self.precision,
            "workload.recompute": self.recompute,
        }


def _methods(usual: Any) -> Iterator[_Method]:
    """Every method, as its own library trains, in 16 bit where devices are made for that.

    Parameters
    ----------
    usual : value
        Precision that suits the devices: that of torch's autocast, or ``full``.
    """
    low = usual["dtype"] if isinstance(usual, dict) else None
    mixed: Any = {"kind": "mixed", "dtype": low} if low else "full"
    sharded = {"param_dtype": low} if low else {}
    deepspeed = {"communication": "deepspeed"}
    kinds: list[tuple[dict[str, Any], Any]] = [
        ({"kind": "ddp"}, usual),
        ({"kind": "zero1", **deepspeed}, mixed),
        ({"kind": "zero2", **deepspeed}, mixed),
        ({"kind": "zero3"}, mixed),
        ({"kind": "fsdp", **sharded}, "full"),
        ({"kind": "hsdp", **sharded}, "full"),
    ]
    for strategy, precision in kinds:
        for recompute in RECOMPUTE:
            yield _Method(strategy, precision, recompute)


class _Stacks:
    """The scenario at full depth, and as short stacks where the model is one.

    Attributes
    ----------
    times : dict of str to Times
        How long compute takes, by the precision that a strategy trains in.
    """

    def __init__(self, asked: Asked, machine: str) -> None:
        self.asked, self.precision = asked, usual_precision(machine)
        field: Any = AnyModel
        model: Model = TypeAdapter(field).validate_python(asked.model)
        key = model.depth_key
        self.depth = int(getattr(model, key)) if key else 0
        answers = Answers(machine, asked.model, asked.gpus, "ddp", 1)
        raw = deepcopy(raw_of(answers, self.precision))  # overrides act in place
        raw["workload"]["steps"] = STEPS
        if asked.sequence_length is not None:
            raw = override_all(
                raw, {"workload.model.sequence_length": asked.sequence_length}, Path()
            )
        self.whole, raw = with_data_checked(raw, 1)
        self.short: list[Scenario] = []
        if key and self.depth > DEPTHS[1]:
            for depth in DEPTHS:
                settings = {f"workload.model.{key}": depth}
                self.short.append(build(override_all(deepcopy(raw), settings, Path()), Path()))
        self.times: dict[str, Times] = {}


class _Trial:
    """One method."""

    def __init__(self, stacks: _Stacks, method: _Method) -> None:
        field: Any = AnyStrategy
        self.stacks, self.method, self.asked = stacks, method, stacks.asked
        self.strategy: Strategy = TypeAdapter(field).validate_python(method.strategy)
        self.whole = self._of(stacks.whole)

    def _of(self, scenario: Scenario) -> Scenario:
        """The method's scenario of one sample."""
        precision: Any = AnyPrecision
        changed = {
            "recompute": self.method.recompute,
            "precision": TypeAdapter(precision).validate_python(self.method.precision),
        }
        workload = scenario.workload.model_copy(update=changed)
        changed_parts = {"workload": workload, "strategy": self.strategy}
        return following(scenario.model_copy(update=changed_parts), scenario.base)

    @property
    def is_possible(self) -> bool:
        """Whether there can be such a scenario."""
        whole = self.whole
        return not joint_problems(whole.cluster, whole.workload, whole.strategy, lambda *_: True)

    def row(self) -> FittingRow:
        """How it does."""
        room = min(device.memory for device in self.whole.cluster.devices())
        lines = list(self._lines())
        size = self.asked.microbatch or _largest(lines, room)
        peak = _at(lines, size)
        fits = peak <= room
        time = self._step_time(size) if fits else None
        samples_per_s = size * self.asked.gpus / time if time else None
        found = rates(self.whole, samples_per_s, time or 0.0)
        return FittingRow(
            self.strategy.kind,
            self.method.recompute,
            size,
            fits,
            peak,
            time,
            found["tokens_per_s"],
            found["mfu"],
            self.method.settings,
        )

    def _lines(self) -> Iterator[Line]:
        """Memory by samples of a micro-batch, at every operation that may be the peak."""
        short = [self._of(scenario) for scenario in self.stacks.short]
        return lines_of_depth(self.whole, short, self.stacks.depth)

    def _step_time(self, microbatch: int) -> float:
        """Time of a steady step of the whole model [s]."""
        workload = self.whole.workload.model_copy(update={"microbatch": microbatch})
        scenario = self.whole.model_copy(update={"workload": workload})
        ends, key = StepEnds(scenario.cluster.world_size), repr(workload.precision)
        known = self.stacks.times.get(key)
        played = play(scenario, TraceBuilder(keep=False, ends=ends), times=known, listen=iter)
        self.stacks.times[key] = played.run.times
        return steady_step_time(ends.ends())


def lines_of_depth(whole: Scenario, short: Sequence[Scenario], depth: int) -> Iterator[Line]:
    """Memory by samples of a micro-batch, at every operation that may be the peak.

    Parameters
    ----------
    whole : Scenario
        As `lines_by_phase` takes it.
    short : sequence of Scenario
        The same of a model with `DEPTHS` blocks; none where it is no stack, or no deeper.
    depth : int
        Blocks of the whole.
    """
    if not short or not _grows_by_blocks(short):
        yield from lines_by_phase(whole, everywhere=True).values()
        return
    fewer, more = (lines_by_phase(scenario) for scenario in short)
    further = depth - DEPTHS[0]
    for phase, line in fewer.items():
        if phase in more:
            one, two = ((1 - further) * line.at(n) + further * more[phase].at(n) for n in (1, 2))
            yield Line.through(one, two)


def _grows_by_blocks(short: Sequence[Scenario]) -> bool:
    """Whether one more block is one more unit, or nothing is cut into units.

    Of buckets that end inside blocks, and of whole tensors that are dealt to ranks, short stacks
    tell nothing.
    """
    fewer, more = (scenario.program.partition for scenario in short)
    if fewer is None or more is None:
        return True
    units = set(more.units) - set(fewer.units)
    return fewer.owners is None and set(fewer.units) < set(more.units) and len(units) == 1


def _trials(stacks: _Stacks) -> Iterator[_Trial]:
    cluster = stacks.whole.cluster
    for method in _methods(stacks.precision):
        if method.strategy["kind"] == "hsdp" and cluster.world_size <= cluster.local_size:
            continue  # one node: the same as fsdp
        trial = _Trial(stacks, method)
        if trial.is_possible:
            yield trial


def _at(lines: Sequence[Line], samples: int) -> float:
    return max(line.at(samples) for line in lines)


def _largest(lines: Sequence[Line], room: float) -> int:
    """The largest power of two that fits; 1 where nothing does."""
    size = 1
    while size < LARGEST_BATCH and _at(lines, 2 * size) <= room:
        size *= 2
    return size
