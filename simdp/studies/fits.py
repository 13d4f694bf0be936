"""Training methods that fit into memory, and their step times.

Memory is a line in the samples of a micro-batch (`simdp.engine.phases`). A stack of equal blocks is
computed at two small depths and extrapolated exactly, wherever a block is a unit of sharding;
otherwise the whole model is computed. Times are those of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import floor
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from simdp.engine.compute.profile_times import Times
from simdp.engine.interpreters.footprints import fits_host, offloaded_nbytes
from simdp.engine.outcome import price_date, rates
from simdp.engine.phases import EDGE, MemoryLine, lines_by_phase
from simdp.engine.simulate import memory_needed, play, simulate
from simdp.errors import ScenarioError
from simdp.reports.figures import host_need, nbytes
from simdp.results.metrics import Metrics, steady_step_time
from simdp.results.plan import Fitting, FittingRow
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario.checks import joint_problems
from simdp.scenario.overrides import Raw
from simdp.scenario.root import Scenario, following
from simdp.strategies import STRATEGIES, AnyStrategy
from simdp.strategies.base import Strategy
from simdp.strategies.ddp import default_buckets
from simdp.strategies.memory import beside_tensors, fits, room_for_tensors, state_on_device
from simdp.studies.answers import interval_of
from simdp.studies.methods import (
    METHODS,
    RECOMPUTE,
    FitsRequest,
    Method,
    TrainingNodes,
    known_choice,
    known_value,
    methods,
    place_of,
    raw_of,
    with_data,
)
from simdp.studies.variants import variant, with_values
from simdp.workload.finetuning import Lora, Quantized
from simdp.workload.models import read_model
from simdp.workload.models.base import Model
from simdp.workload.precision import AnyPrecision
from simdp.workload.step_costs import forward_flops

# Methods that fit ---------------------------------------------------------------------------------

LARGEST_BATCH = 2**16
"""Largest micro-batch that is tried [samples]; what fills a device is less, but for toys."""

LEAST_LENGTH = 64  # shortest sequence that is tried where the model's own does not fit [tokens]
LARGEST_SIZE = 1024  # largest number of devices that is tried

EXACT_BATCHES = 16
"""Up to here every number of samples is tried; beyond, numbers of four binary digits."""

STEPS = 2  # the first is warm-up
DEPTHS = 2 * EDGE, 2 * EDGE + 1  # depths of the two short stacks
ADAPTING = ("lora", "qlora")  # methods that train adapters only

NEARLY_THE_BEST = 0.95
"""Share of the fastest row's rate from which ``init`` prefers the simplest row."""


def fitting(request: FitsRequest, has_times: bool = True) -> Fitting:
    """Try every method, and choose a row.

    Parameters
    ----------
    request : FitsRequest
        Without a number of devices, each method gets the least number that it fits on.
    has_times : bool
        Whether steps are simulated; without times no row is chosen.

    Raises
    ------
    ScenarioError
        If an option does not exist, or options do not go together.
    """
    place = place_of(request.machine, request.device, request.node_size)
    if request.gpus is not None:
        place.check_size(request.gpus)
    request = resolved(request, place)
    precision = request.precision
    stacks = cache(lambda gpus: _Stacks(request, place, precision, gpus))
    if request.gpus is not None:
        pairs = [(trial.row(has_times), trial) for trial in _trials(stacks(request.gpus))]
    else:
        pairs = list(_least_rows(request, place, precision, stacks))
    pairs.sort(key=lambda pair: _sort_key(pair[0]))
    rows = [row for row, _ in pairs]
    chosen = 0
    if request.gpus is not None and rows[0].step_time_s is not None:
        chosen = _chosen_row(rows)
        rows[chosen] = replace(rows[chosen], chosen=True)
    rows[chosen] = pairs[chosen][1].with_interval(rows[chosen])
    gpus = request.gpus or rows[0].gpus
    whole = stacks(gpus).whole
    fits_none = all(row.state == "no" for row in rows)
    return Fitting(
        model=request.title,
        machine=place.machine or place.title,
        assumed=place.assumed,
        gpus=gpus,
        is_least=request.gpus is None,
        memory_bytes=_memory(whole),
        host_memory_bytes=whole.cluster.host_memory,
        samples_are=_sample_in_words(whole),
        precision=_precision_in_words(precision),
        price_date=price_date(whole.cluster),
        rows=rows,
        **_fitting_length(request, whole) if fits_none else {},
    )


def _fitting_length(request: FitsRequest, whole: Scenario) -> dict[str, Any]:
    """Halve the tokens of a sample until some method fits; return the fields that name these.

    The host memory is that of a node whose own is unknown, where nothing fits without offloading.
    """
    model = whole.workload.model
    name = "" if model.timed else model.graph.inputs[0]
    if not name or model.num_tokens(name) is None:
        return {}
    length = (model.input_shapes()[name] or (0,))[0] // 2
    if length < LEAST_LENGTH:
        return {}
    try:
        shorter = fitting(request._replace(sequence_length=length), has_times=False)
    except ScenarioError:  # the model has no such key
        return {}
    rows = [row for row in shorter.rows if row.state != "no"]
    if not rows:
        names = ("fitting_length", "fitting_host_bytes")
        return {name: getattr(shorter, name) for name in names}
    is_unsure = whole.cluster.host_memory is None
    needed = min(row.host_memory_bytes or 0.0 for row in rows) if is_unsure else 0.0
    return {"fitting_length": length, "fitting_host_bytes": needed or None}


def resolved(request: FitsRequest, place: TrainingNodes) -> FitsRequest:
    """Return the request with its precision, and kinds in their usual spelling.

    A ScenarioError if an option, except those of the nodes, does not exist.
    """
    known_value("MODEL", request.model)
    known_choice("--recompute", request.recompute, RECOMPUTE)
    known_choice("--method", request.method, METHODS)
    if request.strategy is not None:
        request = request._replace(strategy=known_value("--strategy", request.strategy))
    if request.precision is None:
        return request._replace(precision=place.usual_precision)
    return request._replace(precision=known_value("--precision", request.precision))


def _trials(stacks: _Stacks) -> Iterator[_Trial]:
    """Yield the possible methods; all but ``full`` with one kind of recomputation."""
    wrong: list[str] = []
    has_any = False
    for group in methods(stacks.request, stacks.precision):
        trials = [_Trial(stacks, method) for method in group]
        wrong += [line for trial in trials for line in trial.problems]
        trials = [trial for trial in trials if not trial.problems]
        has_any = has_any or bool(trials)
        if group[0].name == "full":
            yield from _useful_trials(trials)
        elif trials:
            yield _with_best_recompute(trials)
    if not has_any:
        raise ScenarioError(list(dict.fromkeys(wrong)) or [_nothing_to_try(stacks.request)])


def _useful_trials(trials: Sequence[_Trial]) -> list[_Trial]:
    """Drop trials with too little recomputation to fit, or more than the largest batch needs."""
    kept: list[_Trial] = []
    for trial in reversed(trials):
        kept.append(trial)
        if trial.state == "no":
            break
    enough = [place for place, trial in enumerate(kept) if trial.has_largest_batch]
    return kept[enough[-1] :] if enough else kept


def _nothing_to_try(request: FitsRequest) -> str:
    chosen = {"--method": request.method, "--strategy": request.strategy}
    given = ", ".join(f"{option} {value}" for option, value in chosen.items() if value)
    return f"{given}: {request.title} cannot be trained with these; leave one of them out."


def _with_best_recompute(trials: Sequence[_Trial]) -> _Trial:
    """Choose a method's recomputation.

    Offloading takes the most: transfers to the host are slow, and larger batches share them.
    Adapters take the least that fits.
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
    request: FitsRequest, place: TrainingNodes, precision: object, stacks: Callable[[int], _Stacks]
) -> Iterator[tuple[FittingRow, _Trial]]:
    """Yield a row per strategy and method, at the least number of devices that it fits on.

    Found by bisection, since memory per rank never rises with their number.
    """
    sizes = list(_sizes(place))
    for group in methods(request, precision):

        def most(place: int, group: Sequence[Method] = group) -> _Trial | None:
            """Trial with the most recomputation, which needs the least memory."""
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
        candidates = [_Trial(stacks(sizes[high]), method) for method in group]
        rows = [(t.row(), t) for t in candidates if not t.problems and t.state == "yes"]
        yield min(rows, key=lambda pair: _sort_key(pair[0]))


def _sizes(place: TrainingNodes) -> Iterator[int]:
    """Yield numbers of devices: a part of a node, then whole nodes."""
    yield from range(1, place.per_node + 1)
    if place.is_networked:
        yield from range(2 * place.per_node, LARGEST_SIZE + 1, place.per_node)


def _sort_key(row: FittingRow) -> tuple[float, ...]:
    """Sort key: what fits, full training, few devices and fast steps first; else least memory."""
    if row.step_time_s is None:
        return (4, row.peak_memory_bytes)
    first = 2 * (row.method in ADAPTING) + (row.state == "tight")
    return (first, row.gpus, row.step_time_s / row.microbatch, row.peak_memory_bytes)


def _chosen_row(rows: Sequence[FittingRow]) -> int:
    """Number of the row for ``init``: the simplest of those that are nearly the fastest."""
    first = rows[0]
    least = NEARLY_THE_BEST * _rate(first)
    near_best = [
        place
        for place, row in enumerate(rows)
        if row.state == first.state
        and (row.method in ADAPTING) == (first.method in ADAPTING)
        and _rate(row) >= least
    ]
    return min(near_best, key=lambda place: _simplicity(rows[place]))


def _rate(row: FittingRow) -> float:
    return row.microbatch / (row.step_time_s or float("inf"))


def _simplicity(row: FittingRow) -> tuple[int, str, int]:
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


def _precision_in_words(precision: object) -> str:
    if not isinstance(precision, dict):
        return str(precision)
    return " ".join(str(precision[key]) for key in ("kind", "dtype") if key in precision)


def _memory(scenario: Scenario) -> float:
    return min(device.memory for device in scenario.cluster.devices())


class _Stacks:
    """The scenario at full depth, and at two small depths where the model is a stack.

    ``times`` caches the times of compute by precision, adapters and quantization.
    """

    def __init__(
        self, request: FitsRequest, place: TrainingNodes, precision: object, gpus: int
    ) -> None:
        self.request, self.precision, self.gpus = request, precision, gpus
        wanted = next((group[0] for group in methods(request, precision)), None)
        if wanted is None:
            raise ScenarioError(_nothing_to_try(request))
        plain = wanted._replace(recompute="none", lora=None, quantized=None)
        if request.strategy is None:
            plain = plain._replace(strategy="ddp")
        self.whole, _ = with_data(raw_of(request, place, gpus, plain), 1)
        self.short = short_stacks(self.whole) if _is_uniform(self.whole.strategy) else []
        self.times: dict[str, Times] = {}


def _is_uniform(strategy: Strategy) -> bool:
    """Whether all ranks do the same in every step."""
    return strategy.has_synchronous_ranks and not strategy.averages_parameters


class _Trial:
    """One method on one number of devices."""

    def __init__(self, stacks: _Stacks, method: Method) -> None:
        field: Any = AnyStrategy
        self.stacks, self.method, self.request = stacks, method, stacks.request
        self.strategy: Strategy = TypeAdapter(field).validate_python(method.strategy)
        self.whole = self._with_method(stacks.whole)
        self.memory = _memory(self.whole)

    def _with_method(self, scenario: Scenario) -> Scenario:
        """The method's scenario with one sample."""
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
        whole = self.whole
        cluster = whole.cluster
        is_one_node = cluster.world_size <= cluster.local_size
        same = self.strategy.same_on_one_node
        if same is not None and is_one_node and self.request.strategy is None:
            return [f"strategy.kind: {self.strategy.kind} on one node is {same}; write {same}."]
        return joint_problems(cluster, whole.workload, whole.strategy, lambda *_: True)

    @cached_property
    def lines(self) -> list[MemoryLine]:
        """Memory by samples of a micro-batch, at every operation that may be the peak."""
        short = [self._with_method(scenario) for scenario in self.stacks.short]
        return list(lines_of_depth(self.whole, short))

    def peak_at(self, samples: int) -> float:
        """Tensors at the peak of the fullest rank [bytes]."""
        if _is_uniform(self.strategy):
            return max(line.at(samples) for line in self.lines)
        return float(max(memory_needed(self.at(samples)).peak.tolist()))

    @cached_property
    def microbatch(self) -> int:
        """Most samples that surely fit; at least 1."""
        if self.request.microbatch:
            return self.request.microbatch
        room = room_for_tensors(self.memory, self.stacks.gpus)
        if _is_uniform(self.strategy):
            return _largest(self.lines, room)
        size = LARGEST_BATCH
        while size > 1 and self.peak_at(size) > room:
            size //= 2
        return size

    @property
    def has_largest_batch(self) -> bool:
        """Whether the largest micro-batch that is tried fits."""
        chosen = self.request.microbatch is None and self.state == "yes"
        return chosen and self.microbatch == LARGEST_BATCH

    @cached_property
    def peak(self) -> float:
        return self.peak_at(self.microbatch)

    @cached_property
    def taken(self) -> tuple[float, float]:
        """Least and most memory in use on the fullest device [bytes]."""
        least, most = beside_tensors(self.peak, self.stacks.gpus)
        return self.peak + least, self.peak + most

    @property
    def state(self) -> str:
        """``yes`` if it fits, ``no`` if not, ``tight`` if that depends on unknown overheads."""
        if not fits_host(self.whole):
            return "no"
        return state_on_device(self.peak, self.stacks.gpus, self.memory)

    def row(self, has_times: bool = True) -> FittingRow:
        size, gpus = self.microbatch, self.stacks.gpus
        time = self._step_time(size) if has_times and self.state != "no" else None
        samples_per_s = size * gpus / time if time else None
        speeds = rates(self.whole, samples_per_s, time or 0.0)
        tokens, price = speeds.tokens_per_s, self.whole.cluster.rates().price
        least, most = self.taken
        on_host = offloaded_nbytes(self.whole)
        is_unsure = on_host > 0 and self.whole.cluster.host_memory is None and self.state == "yes"
        return FittingRow(
            strategy=self.strategy.kind,
            recompute=self.method.recompute,
            microbatch=size,
            fits=None if is_unsure else self.state == "yes",
            peak_memory_bytes=self.peak,
            step_time_s=time,
            tokens_per_s=tokens,
            mfu=speeds.mfu,
            settings=self.method.settings,
            method=self.method.name,
            state=self.state,
            gpus=gpus,
            precision=_precision_in_words(self.method.precision),
            memory_low_bytes=least,
            memory_high_bytes=most,
            host_memory_bytes=on_host or None,
            samples_per_s=samples_per_s,
            usd_per_million_tokens=1e6 * price / tokens if price and tokens else None,
            usd_per_million_samples=(
                1e6 * price / samples_per_s if price and samples_per_s else None
            ),
        )

    def at(self, microbatch: int) -> Scenario:
        workload = self.whole.workload
        changed: Raw = {"microbatch": microbatch}
        if workload.microbatch is None:  # one batch for all devices
            changed = {"global_batch": microbatch * self.stacks.gpus}
        if getattr(workload.dataset, "num_samples", None) is not None:
            samples = microbatch * self.stacks.gpus * (workload.steps or STEPS)
            changed["dataset"] = workload.dataset.model_copy(update={"num_samples": samples})
        return self.whole.model_copy(update={"workload": workload.model_copy(update=changed)})

    def _step_time(self, microbatch: int) -> float:
        scenario = self.at(microbatch)
        if not _is_uniform(self.strategy):
            return float(simulate(scenario).metrics.step_time_s)
        workload = scenario.workload.model_copy(update={"steps": STEPS})
        scenario = scenario.model_copy(update={"workload": workload})
        ends = StepEnds(scenario.cluster.world_size)
        key = repr((workload.precision, workload.lora, workload.quantized))
        known = self.stacks.times.get(key)
        played = play(scenario, TraceBuilder(keep=False, ends=ends), times=known, listen=iter)
        self.stacks.times[key] = played.run.times
        return steady_step_time(ends.ends())

    def with_interval(self, row: FittingRow) -> FittingRow:
        if row.step_time_s is None:
            return row
        ends = interval_of(self.at(row.microbatch), row.step_time_s)
        return row if ends is None else replace(row, low_s=ends[0], high_s=ends[1])


def short_stacks(whole: Scenario) -> list[Scenario]:
    """Make the scenario with `DEPTHS` blocks; none where it is no deeper, or no stack."""
    key = whole.workload.model.depth_key
    if key is None or _depth(whole) <= DEPTHS[1]:
        return []
    raw, setting = whole.resolved(), f"workload.model.{key}"
    short = [with_values(whole, raw, {setting: depth}) for depth in DEPTHS]
    return [following(scenario, whole.base) for scenario in short]


def _depth(scenario: Scenario) -> int:
    model = scenario.workload.model
    return int(getattr(model, model.depth_key or "", 0))


def lines_of_depth(whole: Scenario, short: Sequence[Scenario]) -> Iterator[MemoryLine]:
    """Memory by samples of a micro-batch, at every operation that may be the peak.

    ``short`` is from `short_stacks`.
    """
    if not short or not _grows_by_blocks(short):
        yield from lines_by_phase(whole, everywhere=True).values()
        return
    fewer, more = (lines_by_phase(scenario) for scenario in short)
    further = _depth(whole) - DEPTHS[0]
    for phase, line in fewer.items():
        if phase in more:
            first, second = (
                (1 - further) * line.at(n) + further * more[phase].at(n) for n in (1, 2)
            )
            yield MemoryLine.through(first, second)


def _grows_by_blocks(short: Sequence[Scenario]) -> bool:
    """Whether one more block is one more unit, or nothing is sharded.

    False for buckets that end inside blocks, and where ranks own whole tensors.
    """
    fewer, more = (scenario.program.partition for scenario in short)
    if fewer is None or more is None:
        return True
    units = set(more.units) - set(fewer.units)
    return fewer.owners is None and set(fewer.units) < set(more.units) and len(units) == 1


def _largest(lines: Sequence[MemoryLine], room: float) -> int:
    """Most samples that fit; at least 1.

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


# Settings that need less memory -------------------------------------------------------------------

SHARDED = ("zero1", "zero2", "fsdp")  # strategies with sharding, least first
NUM_STEPS = 2  # memory reaches its peak by the second step


class MemoryNeed(NamedTuple):
    """Settings in words, memory of the fullest rank [bytes], and whether all devices have it."""

    words: str
    nbytes: float
    fits: bool


def fitting_settings(scenario: Scenario) -> list[MemoryNeed]:
    """Try settings with less memory: recomputation, sharding, smaller micro-batches.

    Returns those that fit; if none does, all that were tried. Invalid settings are skipped.
    """
    tried = [need for need in _tried(scenario) if need is not None]
    return [need for need in tried if need.fits] or tried


def need_in_words(scenario: Scenario, metrics: Metrics) -> str:
    """Describe a rank's memory and its device's, and whether more ranks could help.

    ``metrics`` are those of the scenario's result.
    """
    peaks = metrics.peak_memory_bytes
    if fits(scenario.cluster, peaks):
        return host_need(offloaded_nbytes(scenario), scenario.cluster.host_memory)
    k, devices = scenario.cluster.ranks_per_device, scenario.cluster.devices()
    worst = max(range(len(peaks)), key=lambda rank: peaks[rank] / devices[rank].memory)
    there = nbytes(devices[worst].memory) + (f" that {k} ranks share" if k > 1 else "")
    never = ", however many ranks there are" if _is_whole(scenario, metrics.memory_bytes) else ""
    needs = f"a rank needs {nbytes(peaks[worst])} of {there}{never}"
    return needs + _too_large_a_unit(scenario, worst, devices[worst].memory / k)


def _too_large_a_unit(scenario: Scenario, rank: int, memory: float) -> str:
    """Name the unit that is larger than a rank's memory [bytes]; empty if there is none."""
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


def fitting_settings_in_words(scenario: Scenario) -> str:
    """Describe settings that fit, or how close others come: ``"; strategy fsdp needs 12 GB"``.

    ``scenario`` is one point, which does not fit.
    """
    if not fits_host(scenario):
        return "; use more nodes, or keep less on the host."
    needs = fitting_settings(scenario)
    on = f" on these {scenario.cluster.world_size}" if scenario.cluster.world_size > 1 else ""
    listed = ", ".join(f"{need.words} needs {nbytes(need.nbytes)}" for need in needs)
    if not needs:
        return "; use larger devices."
    if needs[0].fits:
        return f"; {listed}{on}."
    return f"; nothing that was tried fits: {listed}{on}; use larger devices, or more with fsdp."


def _is_whole(scenario: Scenario, memory: Mapping[str, int]) -> bool:
    """Whether the parts of the model that each rank keeps whole exceed its memory."""
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
    yield _smaller_microbatch(scenario)


def _smaller_microbatch(scenario: Scenario) -> MemoryNeed | None:
    """The largest micro-batch that fits, by halving; or one sample."""
    size, need = scenario.workload.microbatch, None
    least = _need(scenario, "microbatch: 1", {"workload.microbatch": 1}) if size else None
    if least is None or not least.fits:
        return least if size and size > 1 else None
    while size and size > 1 and (need is None or not need.fits):
        size //= 2
        need = _need(scenario, f"microbatch: {size}", {"workload.microbatch": size})
    return need


def _need(scenario: Scenario, words: str, settings: dict[str, object]) -> MemoryNeed | None:
    """Memory of a scenario with some settings; None where these are invalid."""
    changed = variant(scenario, settings, NUM_STEPS)
    if changed is None:
        return None
    ledger = memory_needed(changed)
    peaks = ledger.peak.tolist()
    return MemoryNeed(words, max(peaks), fits(changed.cluster, peaks))


# Presets of models --------------------------------------------------------------------------------

ITEMSIZE = 4  # bytes per parameter in float32
SHOWN = 6  # most buckets that are listed one by one


def describe(name: str) -> str:
    """Describe a preset in a line, for ``list models``: float32, torch's buckets."""
    model = read_model(name)
    elements = model.num_parameters()
    flops = forward_flops(model.graph, model.known_shapes())
    buckets = [ITEMSIZE * elements for elements in default_buckets(model, ITEMSIZE)]
    return (
        f"{elements:,} parameters, {elements * ITEMSIZE / 1e6:,.1f} MB, "
        f"{flops.products / 1e9:.2f} GFLOP per sample ({_sample(model)}) forward, "
        f"{_bucket_text(buckets)}"
    )


def _sample(model: Model) -> str:
    """Size of a sample: ``128 tokens``, or the shape of an image."""
    name, shape = model.graph.inputs[0], model.known_shapes()[0]
    if model.num_tokens(name) is not None:
        return f"{shape[0]} tokens"
    return "x".join(map(str, shape))


def _bucket_text(buckets: list[int]) -> str:
    sizes = [f"{nbytes / 1e6:.1f}" for nbytes in buckets]
    if len(sizes) > SHOWN:
        low, high = min(buckets) / 1e6, max(buckets) / 1e6
        return f"{len(sizes)} buckets of {low:.1f} to {high:.1f} MB"
    return f"bucket{'s' if len(sizes) > 1 else ''} {', '.join(sizes)} MB"
