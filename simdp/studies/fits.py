"""Methods that fit into memory, and their step times.

What devices keep is followed as lines in the samples of a micro-batch (`simdp.engine.phases`): of a
stack of equal blocks at two depths, from which all others follow exactly, wherever a block is a
unit of what is dealt to ranks, else of the whole model. Times are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, cached_property
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from simdp.engine.compute import Times
from simdp.engine.outcome import price_date, rates
from simdp.engine.phases import EDGE, MemoryLine, lines_by_phase
from simdp.engine.simulate import memory_needed, play, simulate
from simdp.errors import ScenarioError
from simdp.reports.figures import nbytes
from simdp.results.metrics import steady_step_time
from simdp.results.plan import Fitting, FittingRow
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.scenario.checks import joint_problems
from simdp.scenario.overrides import override_all
from simdp.scenario.root import build, following
from simdp.strategies import STRATEGIES, AnyStrategy, Strategy
from simdp.strategies.ddp import default_buckets
from simdp.strategies.memory import beside_tensors, fits, room_for_tensors
from simdp.studies.answers import interval_of
from simdp.studies.methods import (
    METHODS,
    RECOMPUTE,
    FitsRequest,
    Method,
    Raw,
    TrainingNodes,
    known_choice,
    known_value,
    methods,
    place_of,
    raw_of,
    with_data,
)
from simdp.studies.variants import variant
from simdp.workload.finetuning import Lora, Quantized
from simdp.workload.models import AnyModel, Model
from simdp.workload.precision import AnyPrecision
from simdp.workload.step_costs import forward_flops

# Fits ---------------------------------------------------------------------------------------------

LARGEST_BATCH = 256
"""Samples of a micro-batch that are tried at most."""

LARGEST_SIZE = 1024
"""Devices that are tried at most where the least number is asked for."""

EXACT_BATCHES = 16
"""Up to here every number of samples is tried; beyond, numbers of four binary digits."""

STEPS = 2
"""The first is warm-up."""

DEPTHS = 2 * EDGE, 2 * EDGE + 1
"""Of the short stacks."""

ADAPTING = ("lora", "qlora")
"""Methods that train adapters alone."""

NEARLY_THE_BEST = 0.95
"""Of the fastest row's rate: of those that reach so much, ``init`` writes the simplest."""


def fitting(asked: FitsRequest, has_times: bool = True) -> Fitting:
    """Try every method.

    Parameters
    ----------
    asked : Asked
        Without a number of devices, each method is tried on the least that it fits on.
    has_times : bool
        Whether steps are simulated; without their times no row is chosen.

    Raises
    ------
    ScenarioError
        If what is asked for does not exist, or does not go together.
    """
    place = place_of(asked.machine, asked.device, asked.node_size)
    if asked.gpus is not None:
        place.check_size(asked.gpus)
    precision = check(asked, place)
    stacks = cache(lambda gpus: _Stacks(asked, place, precision, gpus))
    if asked.gpus is not None:
        found = [(trial.row(has_times), trial) for trial in _trials(stacks(asked.gpus))]
    else:
        found = list(_least_rows(asked, place, precision, stacks))
    found.sort(key=lambda pair: _worth(pair[0]))
    rows = [row for row, _ in found]
    chosen = 0
    if asked.gpus is not None and rows[0].step_time_s is not None:
        chosen = _choice(rows)
        rows[chosen] = replace(rows[chosen], chosen=True)
    rows[chosen] = found[chosen][1].with_interval(rows[chosen])
    gpus = asked.gpus or rows[0].gpus
    whole = stacks(gpus).whole
    return Fitting(
        model=asked.title,
        machine=place.cluster.get("machine", place.title),
        assumed=place.assumed,
        gpus=gpus,
        is_least=asked.gpus is None,
        memory_bytes=_memory(whole),
        samples_are=_sample_in_words(whole),
        precision=_precision_in_words(precision),
        price_date=price_date(whole.cluster),
        rows=rows,
    )


def check(asked: FitsRequest, place: TrainingNodes) -> Any:
    """Check all that is asked for but the place; return the precision that is meant.

    Raises
    ------
    ScenarioError
        If something does not exist.
    """
    known_value("MODEL", asked.model)
    known_choice("--recompute", asked.recompute, RECOMPUTE)
    known_choice("--method", asked.method, METHODS)
    if asked.strategy is not None:
        known_value("--strategy", asked.strategy)
    if asked.precision is None:
        return place.usual_precision
    if asked.precision in ("amp", "mixed"):  # of which there are two, and devices have one or both
        usual = place.usual_precision
        dtype = usual["dtype"] if isinstance(usual, dict) else "bfloat16"
        return {"kind": asked.precision, "dtype": dtype}
    return known_value("--precision", asked.precision)


def _trials(stacks: _Stacks) -> Iterator[_Trial]:
    """Each method that can be; all but the full one with one kind of recomputation."""
    wrong: list[str] = []
    found = False
    for group in methods(stacks.asked, stacks.precision):
        trials = [_Trial(stacks, method) for method in group]
        wrong += [line for trial in trials for line in trial.problems]
        trials = [trial for trial in trials if not trial.problems]
        found = found or bool(trials)
        if group[0].name == "full":
            yield from _worth_a_row(trials)
        elif trials:
            yield _one_of(trials)
    if not found:
        raise ScenarioError(list(dict.fromkeys(wrong)) or [_nothing_to_try(stacks.asked)])


def _worth_a_row(trials: Sequence[_Trial]) -> list[_Trial]:
    """Of one method with more and more recomputation, leave out trials without interest.

    These are less recomputation than what does not fit, and more than the largest batch needs.
    """
    kept: list[_Trial] = []
    for trial in reversed(trials):
        kept.append(trial)
        if trial.state == "no":
            break
    enough = [place for place, trial in enumerate(kept) if trial.has_largest_batch]
    return kept[enough[-1] :] if enough else kept


def _nothing_to_try(asked: FitsRequest) -> str:
    chosen = {"--method": asked.method, "--strategy": asked.strategy}
    given = ", ".join(f"{option} {value}" for option, value in chosen.items() if value)
    return f"{given}: {asked.title} cannot be trained so; leave one of them out."


def _one_of(trials: Sequence[_Trial]) -> _Trial:
    """The recomputation that suits a method.

    What travels to the host and back takes long, and as many samples as possible share it. Adapters
    send little: nothing is computed again that need not be.
    """
    if trials[0].method.name == "offload":
        return trials[-1]
    tight = None
    for trial in trials:
        if trial.state == "yes":
            return trial
        tight = tight or (trial if trial.state == "tight" else None)
    return tight or trials[-1]


def _least_rows(
    asked: FitsRequest, place: TrainingNodes, precision: Any, stacks: Callable[[int], _Stacks]
) -> Iterator[tuple[FittingRow, _Trial]]:
    """For each strategy and method a row at the least number of devices that it fits on.

    What a rank keeps falls with their number, or stays.
    """
    sizes = list(_sizes(place))
    for group in methods(asked, precision):

        def most(place: int, group: Sequence[Method] = group) -> _Trial | None:
            """With the most recomputation that can be, which needs least."""
            trials = (_Trial(stacks(sizes[place]), method) for method in reversed(group))
            return next((trial for trial in trials if not trial.problems), None)

        low, high = 0, len(sizes) - 1
        last = most(high)
        if last is not None and last.state != "yes":
            yield last.row(), last
        if last is None or last.state != "yes":
            continue
        while low < high:
            middle = (low + high) // 2
            trial = most(middle)
            fits = trial is not None and trial.state == "yes"
            low, high = (low, middle) if fits else (middle + 1, high)
        found = [_Trial(stacks(sizes[high]), method) for method in group]
        rows = [(t.row(), t) for t in found if not t.problems and t.state == "yes"]
        yield min(rows, key=lambda pair: _worth(pair[0]))


def _sizes(place: TrainingNodes) -> Iterator[int]:
    """Numbers of devices: a part of a node, then whole nodes."""
    yield from range(1, place.per_node + 1)
    if place.is_networked:
        yield from range(2 * place.per_node, LARGEST_SIZE + 1, place.per_node)


def _worth(row: FittingRow) -> tuple[float, ...]:
    """What fits first, all weights before adapters, few devices and the fastest leading.

    Then what needs least.
    """
    if row.step_time_s is None:
        return (4, row.peak_memory_bytes)
    first = 2 * (row.method in ADAPTING) + (row.state == "tight")
    return (first, row.gpus, row.step_time_s / row.microbatch, row.peak_memory_bytes)


def _choice(rows: Sequence[FittingRow]) -> int:
    """Which row ``init`` writes: the simplest of those that are nearly the fastest."""
    first = rows[0]
    least = NEARLY_THE_BEST * _rate(first)
    alike = [
        place
        for place, row in enumerate(rows)
        if row.state == first.state
        and (row.method in ADAPTING) == (first.method in ADAPTING)
        and _rate(row) >= least
    ]
    return min(alike, key=lambda place: _plainness(rows[place]))


def _rate(row: FittingRow) -> float:
    return row.microbatch / (row.step_time_s or float("inf"))


def _plainness(row: FittingRow) -> tuple[int, str, int]:
    return METHODS.index(row.method), row.strategy, RECOMPUTE.index(row.recompute)


def _sample_in_words(scenario: Scenario) -> str:
    model = scenario.workload.model
    if model.timed:
        return "one value"
    name = model.graph.inputs[0]
    shape = model.input_shapes()[name] or ()
    if model.num_tokens(name) is not None and shape:
        return f"{shape[0]:,} tokens"
    return " x ".join(map(str, shape)) or "one value"


def _precision_in_words(precision: Any) -> str:
    if not isinstance(precision, dict):
        return str(precision)
    return " ".join(str(precision[key]) for key in ("kind", "dtype") if key in precision)


def _memory(scenario: Scenario) -> float:
    """Of the smallest device [bytes]."""
    return min(device.memory for device in scenario.cluster.devices())


class _Stacks:
    """The scenario at full depth, and as short stacks where the model is one.

    Attributes
    ----------
    times : dict of str to Times
        How long compute takes, by all that it depends on.
    """

    def __init__(self, asked: FitsRequest, place: TrainingNodes, precision: Any, gpus: int) -> None:
        self.asked, self.precision, self.gpus = asked, precision, gpus
        wanted = next((group[0] for group in methods(asked, precision)), None)
        if wanted is None:
            raise ScenarioError([_nothing_to_try(asked)])
        plain = wanted._replace(recompute="none", lora=None, quantized=None)
        if asked.strategy is None:
            plain = plain._replace(strategy="ddp")
        self.whole, raw = with_data(raw_of(asked, place, gpus, plain), 1)
        model = self.whole.workload.model
        key = model.depth_key
        self.depth = int(getattr(model, key)) if key else 0
        self.short: list[Scenario] = []
        if key and self.depth > DEPTHS[1] and _is_in_step(self.whole.strategy):
            for depth in DEPTHS:
                settings = {f"workload.model.{key}": depth}
                self.short.append(build(override_all(deepcopy(raw), settings, Path()), Path()))
        self.times: dict[str, Times] = {}


def _is_in_step(strategy: Strategy) -> bool:
    """Whether all ranks do the same, in every step."""
    return strategy.execution == "synchronous" and not strategy.averages_parameters


class _Trial:
    """One method on one number of devices."""

    def __init__(self, stacks: _Stacks, method: Method) -> None:
        field: Any = AnyStrategy
        self.stacks, self.method, self.asked = stacks, method, stacks.asked
        self.strategy: Strategy = TypeAdapter(field).validate_python(method.strategy)
        self.whole = self._of(stacks.whole)
        self.memory = _memory(self.whole)

    def _of(self, scenario: Scenario) -> Scenario:
        """The method's scenario of one sample."""
        precision: Any = AnyPrecision
        method = self.method
        changed: Raw = {
            "recompute": method.recompute,
            "precision": TypeAdapter(precision).validate_python(method.precision),
        }
        if method.lora is not None:
            changed["lora"] = Lora.model_validate(method.lora)
        if method.quantized is not None:
            changed["quantized"] = Quantized.model_validate(method.quantized)
        workload = scenario.workload.model_copy(update=changed)
        changed_parts = {"workload": workload, "strategy": self.strategy}
        return following(scenario.model_copy(update=changed_parts), scenario.base)

    @cached_property
    def problems(self) -> list[str]:
        """Why there can be no such scenario."""
        whole = self.whole
        cluster = whole.cluster
        is_one_node = cluster.world_size <= cluster.local_size
        same = self.strategy.same_on_one_node
        if same is not None and is_one_node and self.asked.strategy is None:
            return [f"strategy.kind: {self.strategy.kind} on one node is {same}; write {same}."]
        return joint_problems(cluster, whole.workload, whole.strategy, lambda *_: True)

    @cached_property
    def lines(self) -> list[MemoryLine]:
        """Memory by samples of a micro-batch, at every operation that may be the peak."""
        short = [self._of(scenario) for scenario in self.stacks.short]
        return list(lines_of_depth(self.whole, short, self.stacks.depth))

    def peak_at(self, samples: int) -> float:
        """Tensors of the fullest rank at its peak [bytes]."""
        if _is_in_step(self.strategy):
            return max(line.at(samples) for line in self.lines)
        return float(max(memory_needed(self.at(samples)).peak.tolist()))

    @cached_property
    def microbatch(self) -> int:
        """As many samples as surely fit; 1 where that is not sure of any."""
        if self.asked.microbatch:
            return self.asked.microbatch
        room = room_for_tensors(self.memory, self.stacks.gpus)
        if _is_in_step(self.strategy):
            return _largest(self.lines, room)
        size = LARGEST_BATCH
        while size > 1 and self.peak_at(size) > room:
            size //= 2
        return size

    @property
    def has_largest_batch(self) -> bool:
        """Whether as many samples fit as are tried."""
        chosen = self.asked.microbatch is None and self.state == "yes"
        return chosen and self.microbatch == LARGEST_BATCH

    @cached_property
    def peak(self) -> float:
        """Tensors of the fullest rank at its peak [bytes]."""
        return self.peak_at(self.microbatch)

    @cached_property
    def taken(self) -> tuple[float, float]:
        """The least and the most that is taken of the fullest device [bytes]."""
        least, most = beside_tensors(self.peak, self.stacks.gpus)
        return self.peak + least, self.peak + most

    @property
    def state(self) -> str:
        """Whether it fits: yes, no, or tight where that depends on what is not known."""
        least, most = self.taken
        return "yes" if most <= self.memory else "tight" if least <= self.memory else "no"

    def row(self, has_times: bool = True) -> FittingRow:
        """How it does."""
        size, gpus = self.microbatch, self.stacks.gpus
        time = self._step_time(size) if has_times and self.state != "no" else None
        samples_per_s = size * gpus / time if time else None
        found = rates(self.whole, samples_per_s, time or 0.0)
        tokens, price = found["tokens_per_s"], self.whole.cluster.rates().price
        least, most = self.taken
        return FittingRow(
            strategy=self.strategy.kind,
            recompute=self.method.recompute,
            microbatch=size,
            fits=self.state == "yes",
            peak_memory_bytes=self.peak,
            step_time_s=time,
            tokens_per_s=tokens,
            mfu=found["mfu"],
            settings=self.method.settings,
            method=self.method.name,
            state=self.state,
            gpus=gpus,
            precision=_precision_in_words(self.method.precision),
            memory_low_bytes=least,
            memory_high_bytes=most,
            samples_per_s=samples_per_s,
            usd_per_million_tokens=1e6 * price / tokens if price and tokens else None,
            usd_per_million_samples=(
                1e6 * price / samples_per_s if price and samples_per_s else None
            ),
        )

    def at(self, microbatch: int) -> Scenario:
        """The method's scenario of so many samples."""
        workload = self.whole.workload
        changed: Raw = {"microbatch": microbatch}
        if workload.microbatch is None:  # one batch for all devices
            changed = {"global_batch": microbatch * self.stacks.gpus}
        if hasattr(workload.dataset, "num_samples"):
            samples = microbatch * self.stacks.gpus * (workload.steps or STEPS)
            changed["dataset"] = workload.dataset.model_copy(update={"num_samples": samples})
        return self.whole.model_copy(update={"workload": workload.model_copy(update=changed)})

    def _step_time(self, microbatch: int) -> float:
        """Time of a steady step of the whole model [s]."""
        scenario = self.at(microbatch)
        if not _is_in_step(self.strategy):
            return float(simulate(scenario).metrics["step_time_s"])
        workload = scenario.workload.model_copy(update={"steps": STEPS})
        scenario = scenario.model_copy(update={"workload": workload})
        ends = StepEnds(scenario.cluster.world_size)
        key = repr((workload.precision, workload.lora, workload.quantized))
        known = self.stacks.times.get(key)
        played = play(scenario, TraceBuilder(keep=False, ends=ends), times=known, listen=iter)
        self.stacks.times[key] = played.run.times
        return steady_step_time(ends.ends())

    def with_interval(self, row: FittingRow) -> FittingRow:
        """A row of it, with the 90 % interval of its step, which takes as long as the step."""
        if row.step_time_s is None:
            return row
        ends = interval_of(self.at(row.microbatch), row.step_time_s)
        return row if ends is None else replace(row, low_s=ends[0], high_s=ends[1])


def lines_of_depth(whole: Scenario, short: Sequence[Scenario], depth: int) -> Iterator[MemoryLine]:
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
            yield MemoryLine.through(one, two)


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


def _largest(lines: Sequence[MemoryLine], room: float) -> int:
    """The most samples that fit; 1 where none do.

    Beyond `EXACT_BATCHES` only numbers of four binary digits: 18, 20, 22, ... 36, 40, 44.
    """
    most = float(LARGEST_BATCH)
    for line in lines:
        if line.per_sample > 0:
            most = min(most, 1 + (room - float(line)) / line.per_sample)
        elif float(line) > room:
            most = 1
    size = max(floor(most), 1)
    step = max(2 ** (size.bit_length() - 1) * 2 // EXACT_BATCHES, 1)
    return int(size // step * step)


# What fits ----------------------------------------------------------------------------------------

SHARDED = ("zero1", "zero2", "fsdp")
"""Strategies that divide among the ranks what replicas keep whole, the most thorough last."""

NUM_STEPS = 2
"""Everything that a rank keeps is there by the second step."""


class MemoryNeed(NamedTuple):
    """What a scenario would need with other settings.

    Attributes
    ----------
    words : str
        The settings.
    nbytes : float
        Of the rank that needs most [bytes].
    fits : bool
        Whether every device has room.
    """

    words: str
    nbytes: float
    fits: bool


def what_fits(scenario: Scenario) -> list[MemoryNeed]:
    """Try less memory for the same training: recomputation, shards, smaller micro-batches.

    Parameters
    ----------
    scenario : Scenario
        One point, which does not fit.

    Returns
    -------
    list of Need
        What fits; where nothing does, all that was tried. Settings that the scenario cannot have
        are passed over.
    """
    tried = [need for need in _tried(scenario) if need is not None]
    return [need for need in tried if need.fits] or tried


def need_in_words(scenario: Scenario, metrics: Mapping[str, Any]) -> str:
    """Say what a rank needs of its device, and whether more ranks could help.

    Parameters
    ----------
    scenario : Scenario
        One point.
    metrics : mapping of str to value
        Of its result.
    """
    peaks = metrics["peak_memory_bytes"]
    k, devices = scenario.cluster.ranks_per_device, scenario.cluster.devices()
    worst = max(range(len(peaks)), key=lambda rank: peaks[rank] / devices[rank].memory)
    there = nbytes(devices[worst].memory) + (f" that {k} ranks share" if k > 1 else "")
    never = ", however many ranks there are" if _is_whole(scenario, metrics["memory_bytes"]) else ""
    needs = f"a rank needs {nbytes(peaks[worst])} of {there}{never}"
    return needs + _too_large_a_unit(scenario, worst, devices[worst].memory / k)


def _too_large_a_unit(scenario: Scenario, rank: int, memory: float) -> str:
    """Say which unit alone a rank has no room for while it is whole, if there is one [bytes]."""
    dealt, itemsize = scenario.program.partition, scenario.program.facts.weight_itemsize
    if dealt is None or dealt.kept.weights:
        return ""
    largest = max(range(len(dealt.units)), key=dealt.unit_elements)
    whole = float(dealt.unit_elements(largest) * itemsize)
    if whole <= memory:
        return ""
    first = dealt.units[largest][0]
    return (
        f"; rank {rank} has no room for the {nbytes(whole)} of the unit that begins with {first}: "
        "make units smaller"
    )


def what_fits_in_words(scenario: Scenario) -> str:
    """Say what would fit, or how close one comes: ``"; strategy fsdp needs 12 GB"``.

    Parameters
    ----------
    scenario : Scenario
        One point, which does not fit.
    """
    found = what_fits(scenario)
    on = f" on these {scenario.cluster.world_size}" if scenario.cluster.world_size > 1 else ""
    listed = ", ".join(f"{need.words} needs {nbytes(need.nbytes)}" for need in found)
    if not found:
        return "; use larger devices."
    if found[0].fits:
        return f"; {listed}{on}."
    return f"; nothing that was tried fits: {listed}{on}; use larger devices, or more with fsdp."


def _is_whole(scenario: Scenario, memory: Mapping[str, int]) -> bool:
    """Whether a rank has no room for what it keeps of the model whole, beside its own pieces."""
    cluster = scenario.cluster
    dealt = scenario.program.partition
    parts = ["parameters"] if dealt is None or dealt.kept.weights else []
    parts += ["gradients", "buckets"] if dealt is None or dealt.kept.gradients else []
    parts += ["optimizer_state"] if dealt is None else []
    room = max(device.memory for device in cluster.devices()) / cluster.ranks_per_device
    return sum(memory[part] for part in parts) > room


def _tried(scenario: Scenario) -> Iterator[MemoryNeed | None]:
    recompute: dict[str, Any] = {}
    if scenario.workload.recompute == "none" and not scenario.workload.model.timed:
        recompute = {"workload.recompute": "blocks"}
        yield _need(scenario, "recompute: blocks", recompute)
    kinds = [kind for kind in SHARDED if kind in STRATEGIES and kind != scenario.strategy.kind]
    for kind in kinds if scenario.cluster.world_size > 1 else ():
        yield _need(scenario, f"strategy {kind}", {"strategy": {"kind": kind}})
    if kinds and recompute and scenario.cluster.world_size > 1:
        both = {"strategy": {"kind": kinds[-1]}, **recompute}
        yield _need(scenario, f"strategy {kinds[-1]} with recompute: blocks", both)
    yield _smaller(scenario)


def _smaller(scenario: Scenario) -> MemoryNeed | None:
    """The largest micro-batch that fits, of those that come from halving; or one sample."""
    size, found = scenario.workload.microbatch, None
    least = _need(scenario, "microbatch: 1", {"workload.microbatch": 1}) if size else None
    if least is None or not least.fits:
        return least if size and size > 1 else None
    while size and size > 1 and (found is None or not found.fits):
        size //= 2
        found = _need(scenario, f"microbatch: {size}", {"workload.microbatch": size})
    return found


def _need(scenario: Scenario, words: str, settings: dict[str, Any]) -> MemoryNeed | None:
    """What a scenario needs with these settings; None where it cannot have them."""
    changed = variant(scenario, settings, NUM_STEPS)
    if changed is None:
        return None
    ledger = memory_needed(changed)
    peaks = ledger.peak.tolist()
    return MemoryNeed(words, max(peaks), fits(changed.cluster, peaks))


# Presets ------------------------------------------------------------------------------------------

ITEMSIZE = 4
"""Bytes per parameter in float32."""

SHOWN = 6
"""Buckets that are listed one by one."""


def preset(name: str) -> Model:
    """Make the model that a preset stands for."""
    model: Model = TypeAdapter(AnyModel).validate_python(name)
    return model


def describe(name: str) -> str:
    """One line about a preset, for ``python -m simdp list models``: float32, torch's buckets."""
    model = preset(name)
    elements = model.num_parameters()
    flops = forward_flops(model.graph, model.known_shapes())
    buckets = [ITEMSIZE * elements for elements in default_buckets(model, ITEMSIZE)]
    return (
        f"{elements:,} parameters, {elements * ITEMSIZE / 1e6:,.1f} MB, "
        f"{flops.products / 1e9:.2f} GFLOP per sample ({_sample(model)}) forward, "
        f"{_listed(buckets)}"
    )


def _sample(model: Model) -> str:
    """What a sample is: ``128 tokens``, or the shape of an image."""
    name, shape = model.graph.inputs[0], model.known_shapes()[0]
    if model.num_tokens(name) is not None:
        return f"{shape[0]} tokens"
    return "x".join(map(str, shape))


def _listed(buckets: list[int]) -> str:
    sizes = [f"{nbytes / 1e6:.1f}" for nbytes in buckets]
    if len(sizes) > SHOWN:
        low, high = min(buckets) / 1e6, max(buckets) / 1e6
        return f"{len(sizes)} buckets of {low:.1f} to {high:.1f} MB"
    return f"bucket{'s' if len(sizes) > 1 else ''} {', '.join(sizes)} MB"
