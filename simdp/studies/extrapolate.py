"""Extrapolates a recorded step to any number of GPUs, machines and strategies.

The recording is a scenario: of traces, whose layers have measured times; or of a file, with
measured steps or with times by the devices' figures. Each point keeps its workload, and so the
samples of a GPU; the machine brings devices, network and overheads. Measured times of another
device are scaled: kernels of traces by their limits, whole steps by the ratio of the steps that the
figures of both devices give. Intervals include the uncertainty of this.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from simdp.cluster.hardware import catalogue_device, close_devices, device_option, read_machine
from simdp.engine.simulate import simulate, times_alone
from simdp.errors import LedBy, ScenarioError, joined
from simdp.results.metrics import PARTS, Metrics, limit_of
from simdp.results.plan import ExtrapolatedPoint, Extrapolation, RecordedStep
from simdp.results.result import FailedPoint, Result, Study
from simdp.scenario import checked
from simdp.scenario.overrides import MACHINE, Raw, as_written, with_machine
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.strategies import strategy_class
from simdp.studies.compare import kind_of
from simdp.studies.executor import Failed, PointExecutor
from simdp.studies.fits import fitting_settings_in_words, need_in_words
from simdp.studies.many import Progress, simulate_all
from simdp.studies.methods import known_value, machine_with
from simdp.studies.replay.scenario import Replayed, read_job, replay_of, seconds
from simdp.studies.store import Store
from simdp.studies.sweep import MAX_INTERVALS
from simdp.studies.variants import parse_world_sizes
from simdp.units import parse
from simdp.version import __version__
from simdp.workload.models import MODEL

# Requests -----------------------------------------------------------------------------------------

HELD = {"hook": "0 s", "launch": "0 s"}  # overheads that a trace with collectives already contains


PLAIN_KEYS = ("machine", "world_size", "devices_per_node")
"""Keys of a cluster that are not remarked on."""

MAX_UNFIT = 8  # points that do not fit whose remarks are listed


def parse_gpus(text: str) -> list[int]:
    """Read ``--gpus``: ``"8"``, ``"8,16,32"``, or ``"8:512"`` by doubling; else a ScenarioError."""
    try:
        return parse_world_sizes(text)
    except ScenarioError as error:
        lines = [line.replace("--world-size", "--gpus", 1) for line in error.problems]
        raise ScenarioError(lines) from None


def parse_machines(text: str) -> list[str]:
    """Read ``--on``: names of machines or files, separated by commas; else a ScenarioError."""
    names = [name.strip() for name in text.split(",")]
    if len({Path(name).stem for name in names}) < len(names):
        raise ScenarioError(f"--on {text}: has a machine twice; write each once.")
    for name in names:
        with LedBy("--on: "):
            read_machine(name, Path())
    return [str(Path(name).resolve()) if Path(name).suffix else name for name in names]


def parse_strategies(text: str) -> list[str]:
    """Read ``--strategy``: kinds, separated by commas; else a ScenarioError."""
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names):
        raise ScenarioError(f"--strategy {text}: has a strategy twice; write each once.")
    return [str(known_value("--strategy", name)) for name in names]


@dataclass(frozen=True)
class ExtrapolationRequest:
    """Points of an extrapolation; empty sequences stand for those of the recording."""

    gpus: Sequence[int]
    machines: Sequence[str] = ()
    strategies: Sequence[Any] = ()  # kinds, or mappings as in YAML


# Recordings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceRecording:
    """A recorded step: its scenario as plain data, and its times."""

    step: RecordedStep
    raw: Raw  # without sweep and measurements
    base: Path  # folder of its files
    machine: str | None  # machine of the recording, if it names one
    remarks: tuple[str, ...] = ()
    # whether compute contains the hooks and launches of collectives
    has_hooks: bool = False

    @property
    def default_machine(self) -> str:
        """Machine without ``--on``: the scenario's, or the usual one of the device."""
        if self.machine is not None:
            return self.machine
        if self.step.device is None:
            raise ScenarioError("--on: the recording names no machine; write for example dgx-h100.")
        return machine_with(self.step.device)


def recording_of_traces(
    paths: Sequence[Path],
    folder: Path,
    *,
    machine: str | None = None,
    device: str | None = None,
    microbatch: int = 1,
    gradients: float | None = None,
) -> SourceRecording:
    """Make a recording of profiler traces; its profile is written to ``folder``.

    Parameters
    ----------
    paths : sequence of Path
        As for `simdp.studies.replay.read_job`.
    folder : Path
        Exists.
    machine : str, optional
        Machine of the traces.
    device, microbatch, gradients
        As for `simdp.studies.replay.replay_of`.

    Raises
    ------
    ScenarioError
        If there is nothing to replay, the device is unknown, or the size of gradients is.
    """
    traces = read_job(paths)
    named = device_option(device) or catalogue_device(traces[0].device_name)
    source = str(paths[0])
    if named is None:
        traced = traces[0].device_name or "which the trace does not name"
        close = close_devices(traces[0].device_name) if traces[0].device_name else []
        hint = f"; similar: {', '.join(close)}" if close else ""
        problem = f"{source}: its device, {traced}, is not in the catalogue; give --device{hint}."
        raise ScenarioError(problem)
    replayed = replay_of(
        traces,
        machine=machine,
        device=named,
        microbatch=microbatch,
        gradients=gradients,
        name="recording",
    )
    if replayed.nbytes <= LEAST_GRADIENTS:
        problem = f"{source}: no collective shows the size of gradients; give --gradients '102 MB'."
        raise ScenarioError(problem)
    (folder / replayed.profile_name).write_text(replayed.profile)
    raw = copy.deepcopy(replayed.scenario)
    raw.pop("collectives", None)
    raw["numerics"] = False
    samples = microbatch * raw["workload"].get("grad_accum", 1) * replayed.num_ranks
    time = replayed.step_time_s
    step = RecordedStep(source, "trace", named, replayed.num_ranks, time, samples / time)
    has_hooks = any(len(trace.collectives) for trace in traces)
    remarks = tuple(_trace_remarks(replayed, microbatch))
    return SourceRecording(step, raw, folder, machine, remarks, has_hooks)


LEAST_GRADIENTS = 8.0  # bytes of the placeholder for gradients of unknown size


OF_LINKS = ("links are fitted", "no transfer")
"""Beginnings of a replay's remarks on its links, in place of which machines bring theirs."""


def _trace_remarks(replayed: Replayed, microbatch: int) -> Iterator[str]:
    """Yield what an extrapolation of traces leaves out."""
    yield from (line for line in replayed.remarks if not line.startswith(OF_LINKS))
    if microbatch == 1:
        yield "samples are micro-batches; --microbatch gives their samples"
    yield "memory: of weights, gradients and optimizer; activations are in no trace"
    if late := replayed.slow_ranks:
        ranks = ", ".join(map(str, late))
        yield f"slow ranks of the recording ({ranks}) are left out; machines have their own jitter"


def recording_of_scenario(
    path: Path,
    overrides: Mapping[str, object] | None = None,
    *,
    kind: str = "scenario",
    source: str | None = None,
    step_time: float | None = None,
    device: str | None = None,
) -> SourceRecording:
    """Make a recording of a scenario, on its own number of GPUs.

    Parameters
    ----------
    path : Path
        A file, or the name of a shipped scenario.
    overrides : mapping, optional
        Dotted keys that are set first.
    kind, source : str, optional
        As of `simdp.results.plan.RecordedStep`; the source is the path by default.
    step_time : float, optional
        Measured time of its step on one device [s], in place of its compute.
    device : str, optional
        Device of measured compute; by default the scenario's.

    Raises
    ------
    ScenarioError
        If it is invalid, or has no single micro-batch that the time could be of.
    """
    file = find(path)
    raw = as_written(file, overrides)
    raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured", "target")}
    raw["numerics"] = False
    with LedBy(f"{file}: "):
        scenario = checked(raw, file.parent)
        if step_time is not None:
            raw["workload"]["compute"] = _measured(scenario, step_time)
            scenario = checked(raw, file.parent)
    compute = scenario.workload.compute
    named = (
        device_option(device) if compute.source == "measured" else getattr(compute, "device", None)
    )
    if compute.source == "measured" and named is None:
        named = scenario.cluster.devices()[0].name
    if device is not None and compute.source != "measured":
        problem = "--device: the recording has no measured step; add --step-time, or leave it out."
        raise ScenarioError(problem)
    metrics = _times(_alone(scenario, raw, file.parent))
    step = RecordedStep(
        source or str(path),
        kind,
        named,
        scenario.cluster.world_size,
        metrics.step_time_s,
        metrics.throughput_samples_per_s or nan,
    )
    machine = raw["cluster"].get("machine")
    return SourceRecording(step, raw, file.parent, machine if isinstance(machine, str) else None)


def _alone(scenario: Scenario, raw: Raw, base: Path) -> Scenario:
    """The scenario; with a measured step on one GPU without a strategy: it takes that time."""
    if scenario.cluster.world_size > 1 or scenario.workload.compute.source != "measured":
        return scenario
    try:
        return checked({**raw, "strategy": "single"}, base)
    except ScenarioError:  # of a workload that only its strategy can train
        return scenario


def _measured(scenario: Scenario, step_time: float) -> Raw:
    """Write ``workload.compute`` of one measured step."""
    workload = scenario.workload
    if workload.microbatch is None or workload.grad_accum != 1:
        needs = "set workload.microbatch, and grad_accum to 1"
        raise ScenarioError(f"--step-time: is of one micro-batch; {needs}.")
    point = {"microbatch": workload.microbatch, "step_time": seconds(step_time)}
    return {"kind": "measured", "points": [point]}


def parse_step_time(text: str) -> float:
    """Read ``--step-time`` [s]; else a ScenarioError."""
    with LedBy("--step-time: "):
        time = parse(text, "time", "93 ms")
    if time <= 0:
        raise ScenarioError(f"--step-time: {text} is no time; write for example 93 ms.")
    return time


def _times(scenario: Scenario) -> Metrics:
    return (times_alone(scenario) or simulate(scenario, keep_trace=False)).metrics


# Points -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedPoint:
    """A point before it is simulated; ``problem`` if it cannot be."""

    machine: str
    gpus: int
    strategy: Any
    scenario: Scenario | None
    problem: str = ""

    @property
    def set(self) -> dict[str, Any]:
        """Settings, as of a sweep."""
        return {MACHINE: self.machine, "strategy": self.strategy, "cluster.world_size": self.gpus}


class Points:
    """Makes the scenarios of all points."""

    def __init__(self, recording: SourceRecording, request: ExtrapolationRequest) -> None:
        self.recording, self.request = recording, request
        self.machines = list(request.machines) or [recording.default_machine]
        self.remarks = list[str]()
        self.strategies = self._strategies()
        self._ratios: dict[tuple[str, int], float] = {}

    def _strategies(self) -> list[Any]:
        """Strategies of the points; the recorded one keeps its options."""
        raw = self.recording.raw
        own = raw.get("strategy", "ddp")
        kind = kind_of(raw)
        if not self.request.strategies:
            if strategy_class(kind).max_ranks == 1 and max(self.request.gpus) > 1:
                self.remarks.append(f"strategy: ddp, since {kind} trains on one GPU")
                return ["ddp"]
            return [own]
        return [own if strategy == kind else strategy for strategy in self.request.strategies]

    def plain(self, machine: str) -> Raw:
        """The recording on a machine, as plain data: with several devices where it scales."""
        recording = self.recording
        raw = copy.deepcopy(recording.raw)
        cluster = raw["cluster"]
        if machine != recording.machine or recording.step.kind == "trace":
            raw["cluster"] = {"machine": machine}
            if recording.has_hooks:
                raw["cluster"]["overheads"] = dict(HELD)
            if isinstance(own := raw.get("collectives"), dict):
                raw["collectives"] = {key: value for key, value in own.items() if key != "cost"}
        else:
            raw["cluster"] = {key: value for key, value in cluster.items() if key != "world_size"}
        compute = raw["workload"].get("compute")
        if isinstance(compute, dict) and compute.get("kind") == "measured":
            compute["points"] = self._scaled(raw, machine, compute["points"])
        return raw

    def _scaled(self, raw: Raw, machine: str, points: Sequence[Raw]) -> list[Raw]:
        """Measured points for a machine's device, with times scaled from the recording's."""
        old = self.recording.step.device
        new = _device_of(raw, self.recording.base)
        if old is None or new is None:
            return [dict(point) for point in points]
        named = [{**point, "device": point.get("device") or old} for point in points]
        if any(point["device"] == new for point in named):
            return named
        scaled_points = []
        for point in (point for point in named if point["device"] == old):
            time = parse(str(point["step_time"]), "time")
            ratio = self._ratio(raw, machine, int(point["microbatch"]))
            scaled = {"device": new, "measured_on": old, "step_time": seconds(time * ratio)}
            scaled_points.append({**point, **scaled})
        return scaled_points

    def _ratio(self, raw: Raw, machine: str, microbatch: int) -> float:
        """A step's time on the machine's device over that on the recording's, by their figures."""
        key = machine, microbatch
        if key not in self._ratios:
            new, old = (
                self._by_figures(raw, microbatch, device)
                for device in (None, self.recording.step.device)
            )
            self._ratios[key] = new / old
        return self._ratios[key]

    def _by_figures(self, raw: Raw, microbatch: int, device: str | None) -> float:
        """Time of a step on one device of a machine, by the device's figures [s]."""
        if getattr(MODEL.member(raw["workload"].get("model")), "timed", False):
            problem = (
                "workload.model: has no layers, so that measured steps of one device cannot be"
            )
            raise ScenarioError(f"{problem} scaled to another; choose machines with that device.")
        alone = copy.deepcopy(raw)
        alone["cluster"] |= {"world_size": 1} | ({"device": device} if device else {})
        alone["workload"] |= {"compute": "roofline", "microbatch": microbatch, "grad_accum": 1}
        alone["workload"].pop("global_batch", None)
        return float(_times(checked(alone, self.recording.base)).step_time_s)

    def planned(self) -> list[PlannedPoint]:
        """Every point, in the order of machines, strategies and numbers of GPUs."""
        points = []
        largest = max(self.request.gpus)
        for machine in self.machines:
            raw, problem = Raw(), ""
            try:
                raw = self.plain(machine)
            except ScenarioError as error:
                problem = joined(error.problems)
            for strategy in self.strategies:
                for gpus in self.request.gpus:
                    points.append(self._planned(raw, machine, gpus, strategy, largest, problem))
        return points

    def _planned(
        self, raw: Raw, machine: str, gpus: int, strategy: object, largest: int, problem: str
    ) -> PlannedPoint:
        if problem:
            return PlannedPoint(machine, gpus, strategy, None, problem)
        point = {**copy.deepcopy(raw), "strategy": strategy}
        point["cluster"]["world_size"] = gpus
        try:
            scenario = checked(point, self.recording.base, largest)
        except ScenarioError as error:
            return PlannedPoint(machine, gpus, strategy, None, joined(error.problems))
        return PlannedPoint(machine, gpus, strategy, scenario)


def _device_of(raw: Raw, base: Path) -> str | None:
    """Name the device of a machine's first rank; None if it has no name."""
    device = with_machine(raw, base)["cluster"].get("device")
    first = device[0] if isinstance(device, list) else device
    return first.get("name") if isinstance(first, dict) else first


# Extrapolation ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extrapolated:
    """An extrapolation, its points as a study of a sweep, and a scenario of each machine."""

    found: Extrapolation
    study: Study
    scenarios: dict[str, Raw]  # by file name; relative paths start from the recording's folder


def extrapolate(
    recording: SourceRecording,
    request: ExtrapolationRequest,
    *,
    executor: PointExecutor,
    store: Store | None = None,
    progress: Progress | None = None,
) -> Extrapolated:
    """Simulate a recorded step at every point.

    Parameters
    ----------
    recording : SourceRecording
        From traces, a script or a scenario.
    request : ExtrapolationRequest
        Machines, numbers of GPUs and strategies.
    executor : PointExecutor
        The results are the same for any.
    store, progress
        As for `simdp.studies.many.simulate_all`.

    Raises
    ------
    ScenarioError
        If no point can run.
    """
    made = Points(recording, request)
    planned = made.planned()
    valid = [point.scenario for point in planned if point.scenario is not None]
    if not valid:
        raise ScenarioError(list(dict.fromkeys(point.problem for point in planned)))
    several: dict[str, Any] = {"executor": executor, "store": store, "progress": progress}
    several["interval"] = "any" if len(valid) <= MAX_INTERVALS else "cheap"
    results = iter(simulate_all(valid, **several))
    played = [(point, None if point.scenario is None else next(results)) for point in planned]
    points = [_point(recording, point, result) for point, result in played]
    if all(point.problem for point in points):
        raise ScenarioError(list(dict.fromkeys(point.problem or "" for point in points)))
    study = _study(made, played)
    remarks = [*recording.remarks, *made.remarks, *_remarks(recording, played, points)]
    extrapolation = Extrapolation(
        __version__, recording.step, points, _best(points), list(dict.fromkeys(remarks))
    )
    return Extrapolated(extrapolation, study, _scenarios(made, points))


Played = Sequence[tuple[PlannedPoint, Result | Failed | None]]


def _point(
    recording: SourceRecording, planned: PlannedPoint, result: Result | Failed | None
) -> ExtrapolatedPoint:
    kind = str(kind_of({"strategy": planned.strategy}))
    point = ExtrapolatedPoint(Path(planned.machine).stem, planned.gpus, kind)
    if not isinstance(result, Result) or planned.scenario is None:
        problem = planned.problem if result is None else joined(result.problems)  # type: ignore[union-attr]
        return replace(point, problem=problem)
    metrics, cluster = result.metrics, planned.scenario.cluster
    peaks = metrics.peak_memory_bytes
    rooms = [device.memory / cluster.ranks_per_device for device in cluster.devices()]
    fullest = max(range(len(peaks)), key=lambda rank: peaks[rank] / rooms[rank])
    ends = metrics.interval_s or (None, None)
    rate, fits = metrics.throughput_samples_per_s, metrics.fits_memory
    speedup = rate / recording.step.throughput_samples_per_s if rate else None
    is_trace, share = recording.step.kind == "trace", float(peaks[fullest] / rooms[fullest])
    return replace(
        point,
        step_time_s=metrics.step_time_s,
        low_s=ends[0],
        high_s=ends[1],
        throughput_samples_per_s=rate,
        tokens_per_s=metrics.tokens_per_s,
        speedup=speedup,
        efficiency=speedup and speedup * recording.step.gpus / planned.gpus,
        peak_memory_bytes=float(peaks[fullest]),
        device_memory_bytes=float(rooms[fullest]),
        fits=None if is_trace and fits else fits,
        limit=limit_of(metrics, share),
        shares={key.removesuffix("_s"): metrics[key] for key in PARTS},
        scaled=_is_scaled(recording, planned.scenario),
    )


def _is_scaled(recording: SourceRecording, scenario: Scenario) -> bool:
    """Whether a point's compute was measured on another device."""
    device = recording.step.device
    return device is not None and any(
        member.name != device for member in scenario.cluster.devices()
    )


def _best(points: Sequence[ExtrapolatedPoint]) -> dict[str, int]:
    """The point with the most samples per second of each machine, among those that fit."""
    best_of: dict[str, int] = {}
    for number, point in enumerate(points):
        if not point.throughput_samples_per_s or point.fits is False:
            continue
        best = best_of.get(point.machine)
        if best is None or point.throughput_samples_per_s > (
            points[best].throughput_samples_per_s or 0.0
        ):
            best_of[point.machine] = number
    return best_of


def _remarks(
    recording: SourceRecording, played: Played, points: Sequence[ExtrapolatedPoint]
) -> Iterator[str]:
    old = recording.step.device
    if old is None:
        yield "compute: by each device's figures; --step-time takes one that was measured"
    own = [key for key in recording.raw["cluster"] if key not in PLAIN_KEYS]
    is_scenario = recording.machine is not None and recording.step.kind != "trace"
    if is_scenario and own and any(planned.machine != recording.machine for planned, _ in played):
        keys = ", ".join(f"cluster.{key}" for key in own)
        yield f"{keys}: of {recording.machine} alone; other machines have their own"
    for machine in dict.fromkeys(point.machine for point in points if point.scaled):
        scenario = next(
            planned.scenario
            for planned, _ in played
            if planned.scenario and Path(planned.machine).stem == machine
        )
        new = scenario.cluster.devices()[0].name
        yield f"{machine}: compute is scaled from {old} to {new}, which widens the intervals"
    unfit = [
        (planned, result.metrics)
        for (planned, result), point in zip(played, points, strict=True)
        if point.fits is False and isinstance(result, Result)
    ]
    for number, (planned, metrics) in enumerate(unfit[:MAX_UNFIT]):
        assert planned.scenario is not None
        is_last = number == min(len(unfit), MAX_UNFIT) - 1
        more = fitting_settings_in_words(planned.scenario) if is_last else ""
        kind = kind_of({"strategy": planned.strategy})
        where = f"{planned.gpus} GPUs of {Path(planned.machine).stem}, {kind}"
        yield f"{where}: does not fit: {need_in_words(planned.scenario, metrics)}{more}"
    if len(unfit) > MAX_UNFIT:
        yield f"{len(unfit) - MAX_UNFIT} more points do not fit"


def _study(made: Points, played: Played) -> Study:
    """Show the points as those of a sweep."""
    over: dict[str, list[Any]] = {MACHINE: [*made.machines], "strategy": [*made.strategies]}
    over["cluster.world_size"] = [*made.request.gpus]
    over = {key: values for key, values in over.items() if len(values) > 1 or "world" in key}
    first = next(planned for planned, result in played if isinstance(result, Result))
    assert first.scenario is not None
    study = Study(__version__, {**first.scenario.resolved(), "sweep": over})
    for number, (planned, result) in enumerate(played):
        chosen = {key: value for key, value in planned.set.items() if key in over}
        if isinstance(result, Result):
            result.set = chosen
            study.points.append(result)
        else:
            problems = [planned.problem] if result is None else result.problems
            study.failed.append(FailedPoint(number, chosen, problems))
    return study


def _scenarios(made: Points, points: Sequence[ExtrapolatedPoint]) -> dict[str, Raw]:
    """A scenario of each machine, with its numbers of GPUs and strategies as a sweep."""
    files: dict[str, Raw] = {}
    for machine in made.machines:
        name = Path(machine).stem
        ran = [point for point in points if point.machine == name and point.problem is None]
        if not ran:
            continue
        raw = made.plain(machine)
        kinds = dict.fromkeys(point.strategy for point in ran)
        strategies = [point for point in made.strategies if kind_of({"strategy": point}) in kinds]
        raw |= {"name": name, "strategy": strategies[0]}
        raw["cluster"]["world_size"] = ran[0].gpus
        sweep: dict[str, list[Any]] = {"strategy": strategies} if len(strategies) > 1 else {}
        sweep["cluster.world_size"] = list(dict.fromkeys(point.gpus for point in ran))
        files[f"{name}.yaml"] = {**raw, "sweep": sweep}
    return files
