"""Diagnoses a job from its reported step time and communication, without a trace.

The job is simulated as it should be: by its model's kernels, and once more with the compute that
was reported. What is reported beyond the 90 % interval of that is out of line. Remedies are
simulated on the job as it was reported: with links slowed until they expose as much communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from simdp.cluster.hardware import Link, device_option, machines_with
from simdp.engine.compute.call_times import CallTimes, compute_parts
from simdp.engine.compute.roofline import roofline_of
from simdp.engine.outcome import peak_flops
from simdp.engine.recorded_script import Stopwatch
from simdp.engine.simulate import memory_needed, simulate, times_alone
from simdp.errors import ScenarioError, UnitError
from simdp.reports.answers import step_shares
from simdp.reports.figures import nbytes, percent, seconds
from simdp.results.collective import bus_bandwidth_factor
from simdp.results.diagnosis import Cause, Diagnosis, Finding, Remedy
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.scenario.overrides import Raw, with_machine
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.strategies.memory import fits
from simdp.studies.advice import would_help
from simdp.studies.answers import interval_of
from simdp.studies.collective import cost_of
from simdp.studies.diagnose.verdict import WORTH
from simdp.studies.intervals import (
    BY_DATA_SHEET,
    NORMAL_90,
    cost_variants,
    known_of_cost,
    machine_calibration,
    residual,
    spread,
)
from simdp.studies.methods import (
    FitsRequest,
    Method,
    TrainingNodes,
    checked_here,
    kind_of,
    known_value,
    place_of,
    raw_of,
    with_data,
)
from simdp.studies.variants import variant
from simdp.units import format_quantity, parse, parse_percent

STEPS = 3  # a step to warm up, and two that count
LARGE = 1e9  # bytes of an all_reduce that reaches the bus bandwidth of the links
LARGEST_BATCH = 1024  # samples of a micro-batch that are tried at most, where none is given

LAYERS = 50
"""Into which a number of parameters is divided, so that communication may overlap backward."""

ADJUSTED = 2  # times that compute is corrected for what overlapping communication adds to it
ROUNDS = 8  # simulations by which a job is brought to the step that was reported
NEAR = 0.02  # part by which its communication may then still differ

SIMILAR = 1.3  # factor within which a bandwidth is as another, or a time as was reported
BUCKET = 25 * 2**20  # bytes of a DDP bucket for the comparison of bus bandwidths
ALIKE = "x the samples; time of as many as now)"  # end of a change that makes steps larger
LEAST = 1e-3  # part of a step below which a finding is left out

ASSUMED_LINKS = (
    "the links are assumed, and what is said of communication and bandwidth rests on them; "
    "--machine FILE.yaml takes the cluster's own."
)

HOW_TO_TRACE = (
    "A trace says more (which rank is late, the host, data, kernels): record torch.profiler with "
    "schedule(wait=10, warmup=3, active=5, repeat=1), one file per rank, then run python -m simdp "
    "diagnose FOLDER; see docs/guides/diagnose.md."
)


class ReportedJob(NamedTuple):
    """A job as its user describes it."""

    # step, comm: time of a step, and of its communication that no compute hides [s]
    step: float
    comm: float
    gpus: int  # number of ranks
    nodes: TrainingNodes  # its links and devices, which may be assumed
    model: Any = None  # as in YAML; None if it is not known
    parameters: int | None = None  # their number, in place of a model
    # strategy, precision: as in YAML
    strategy: Any = "ddp"
    precision: Any = None
    microbatch: int | None = None  # samples per rank and micro-step
    grad_accum: int = 1  # micro-steps of a step
    sequence_length: int | None = None  # tokens of a sample
    smaller: tuple[float, int] | None = None  # step on fewer GPUs [s], and how many

    @property
    def compute(self) -> float:
        """The step without its exposed communication [s]."""
        return self.step - self.comm

    @property
    def machine(self) -> str | None:
        """The machine whose nodes it has; None where these were assumed."""
        return self.nodes.machine


class _Options(NamedTuple):
    """Options of the command line; None where one was not given."""

    step: str | None = None
    comm: str | None = None
    gpus: int | None = None
    device: str | None = None
    machine: str | None = None
    node_size: int | None = None
    model: object = None
    parameters: str | None = None
    strategy: object = None
    precision: object = None
    microbatch: int | None = None
    grad_accum: int | None = None
    sequence_length: int | None = None

    def has(self, option: str) -> bool:
        return getattr(self, option.replace("-", "_")) is not None


def reported_job(options: Raw) -> ReportedJob:
    """Read and check what was given on the command line.

    Parameters
    ----------
    options : dict of str to object
        Values by option without its dashes: ``step``, ``comm`` (``"40%"`` or a time), ``gpus``,
        ``device``, ``machine``, ``model``, ``parameters``, ``strategy``, ``microbatch``,
        ``grad-accum`` and ``precision``; None where an option was not given.

    Raises
    ------
    ScenarioError
        With every problem, one line each, led by the option.
    """
    given = _Options(**{name.replace("-", "_"): value for name, value in options.items()})
    problems = list[str]()
    given, smaller = _smaller(given, problems)
    if given.step is None or given.comm is None or given.gpus is None:
        examples = {"step": "320ms", "comm": "40%", "gpus": "8"}
        missing = [name for name in examples if not given.has(name)]
        names = ", ".join(f"--{name}" for name in missing)
        example = " ".join(f"--{name} {examples[name]}" for name in missing)
        raise ScenarioError(f"{names}: missing for a diagnosis without a trace; add {example}.")
    problems += _contradictions(given)
    step = _time("step", given.step, problems)
    comm = _communication(given.comm, step, problems)
    parameters = None if given.parameters is None else _count(given.parameters, problems)
    for name in ("model", "strategy", "precision"):
        if (value := getattr(given, name)) is not None:
            _checked(problems, partial(known_value, f"--{name}", value))
    nodes = _nodes(given, problems)
    if nodes is not None:
        for gpus in (given.gpus, *(smaller or ())[1:]):
            _checked(problems, partial(nodes.check_size, int(gpus)))
    if not problems and given.gpus == 1 and comm:
        problems.append("--gpus 1: one GPU has no communication; give --comm 0%, or more GPUs.")
    if problems or nodes is None:
        raise ScenarioError(list(dict.fromkeys(problems)))
    return ReportedJob(
        step,
        comm,
        given.gpus,
        nodes,
        given.model,
        parameters,
        "ddp" if given.strategy is None else given.strategy,
        given.precision,
        given.microbatch,
        1 if given.grad_accum is None else given.grad_accum,
        given.sequence_length,
        smaller,
    )


def _contradictions(given: _Options) -> Iterator[str]:
    if given.has("model") and given.has("parameters"):
        yield "--model, --parameters: both given; a model has its parameters, leave one out."
    if not given.has("model"):
        for name in ("microbatch", "sequence-length"):
            if given.has(name):
                yield f"--{name}: needs a model whose samples these are; add --model."
        for name in ("strategy", "precision", "grad-accum"):
            if given.has(name) and not given.has("parameters"):
                yield f"--{name}: needs a model or its size; add --model or --parameters."


def _smaller(given: _Options, problems: list[str]) -> tuple[_Options, tuple[float, int] | None]:
    """Read ``--step 320ms@8,510ms@16``: the last becomes step and GPUs, the first is returned."""
    if given.step is None or "@" not in given.step:
        return given, None
    parts = [part.partition("@") for part in given.step.split(",")]
    wrong = len(parts) != 2 or not all(gpus.strip().isdecimal() for _, _, gpus in parts)
    times = sorted(
        (int(gpus), _time("step", time, problems)) for time, _, gpus in parts if not wrong
    )
    if wrong or times[0][0] == times[-1][0] or given.has("gpus"):
        problems.append(
            f"--step {given.step}: is not TIME@GPUS,TIME@GPUS, two sizes without --gpus; "
            "write for example 320ms@8,510ms@16."
        )
    elif not given.has("model") and not given.has("parameters"):
        problems.append("--step: of two sizes needs a model or its size; add --model.")
    elif given.comm is not None:
        problems.append(f"--comm {given.comm}: follows from two step times; give one of the two.")
    if problems:
        raise ScenarioError(problems)
    (few, short), (gpus, step) = times
    # What the larger size adds to communication follows from the two.
    return given._replace(step=f"{step} s", gpus=gpus, comm="0%"), (short, few)


def _checked(problems: list[str], check: Callable[[], object]) -> None:
    try:
        check()
    except ScenarioError as error:
        problems += error.problems


def _time(option: str, text: str, problems: list[str]) -> float:
    try:
        seconds = parse(text, "time", "320 ms")
    except UnitError as error:
        problems.append(f"--{option}: {error}")
        return 0.0
    if not seconds > 0 or seconds == float("inf"):
        problems.append(f"--{option} {text}: must be a time above 0; write for example 320ms.")
    return seconds


def _communication(text: str, step: float, problems: list[str]) -> float:
    """A share of the step, or a time, in seconds."""
    if "%" in text:
        try:
            share = parse_percent(text.strip())
        except UnitError as error:
            problems.append(f"--comm: {error}")
            return 0.0
        if share >= 1:
            problems.append(f"--comm {text}: must be below 100 % of the step; compute takes some.")
        return share * step
    try:
        exposed = parse(text, "time")
    except UnitError:
        problems.append(f"--comm {text}: is no share and no time; write for example 40% or 128ms.")
        return 0.0
    if step and not 0 <= exposed < step:
        problems.append(f"--comm {text}: must be less than the step of {seconds(step)}.")
    return exposed


def _count(text: str, problems: list[str]) -> int | None:
    """A number of parameters: ``1e9``, ``350M`` or ``7B``."""
    scales = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    scale = scales.get(text[-1:].upper(), 1.0)
    try:
        count = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        count = 0.0
    if not 1 <= count <= 1e13 or count != round(count):
        problems.append(
            f"--parameters {text}: is no whole number of 1 to 1e13; write for example 1e9 or 350M."
        )
        return None
    return int(count)


def _nodes(given: _Options, problems: list[str]) -> TrainingNodes | None:
    """The nodes of the machine that was given, or those to assume for the device."""
    device, machine = given.device, given.machine
    try:
        nodes = place_of(machine, None if machine else device, given.node_size)
        device = device_option(device)
    except ScenarioError as error:
        problems += error.problems
        return None
    has = nodes.figures.get("device")
    if device is not None and has != device:
        named = has if isinstance(has, str) else "devices of its own"
        problems.append(
            f"--device {device}, --machine {machine}: contradict each other, as that machine has "
            f"{named}; leave one out."
        )
    return nodes


# The diagnosis ------------------------------------------------------------------------------------


def diagnose_reported(job: ReportedJob, remedies: bool = True) -> Diagnosis:
    """Diagnose a job without a trace.

    Parameters
    ----------
    job : ReportedJob
        As from `reported_job`.
    remedies : bool
        Whether to simulate what would help.

    Returns
    -------
    Diagnosis
        ``expected`` holds what the job should take.

    Raises
    ------
    ScenarioError
        If there can be no such job.
    """
    links = _Links(job.nodes, job.gpus)
    grown = list[str]()
    if job.smaller is not None:
        job, grown = _with_lost_scaling(job, *job.smaller)
    simulated = _Job(job, links) if job.model or job.parameters else None
    contradicted = simulated is not None and simulated.contradicts is not None
    findings = simulated.findings(remedies) if simulated else _derived(job, links)
    verdict = [finding for finding in findings if finding.worth >= LEAST]
    verdict.sort(
        key=lambda finding: (
            (finding.cause == "compute_bound") != contradicted or finding.worth < WORTH,
            -finding.worth,
        )
    )
    assumed = () if job.machine else (ASSUMED_LINKS,)
    return Diagnosis(
        source="reported",
        step_time_s=job.step,
        compute_s=job.compute,
        exposed_comm_s=job.comm,
        num_ranks=job.gpus,
        world_size=job.gpus,
        verdict=tuple(verdict),
        replayed_s=job.step,
        machine=job.machine,
        machine_from=job.nodes.origin,
        expected=simulated.expected if simulated else None,
        remarks=(*grown, *assumed, *(simulated.remarks if simulated else ()), HOW_TO_TRACE),
    )


def _with_lost_scaling(job: ReportedJob, step: float, gpus: int) -> tuple[ReportedJob, list[str]]:
    """Find the exposed communication from the step on fewer GPUs, and say what was due."""
    few = _Job(job._replace(step=step, gpus=gpus, comm=0.0), _Links(job.nodes, gpus))
    compute = max(step - few.exposed, LEAST * step)
    grown = job._replace(comm=max(job.step - compute, 0.0))
    due = _Job(grown, _Links(job.nodes, job.gpus)).exposed - few.exposed
    return grown, [
        f"from {gpus} to {job.gpus} GPUs a step goes from {seconds(step)} to {seconds(job.step)}: "
        f"{seconds(abs(job.step - step))} {'more' if job.step >= step else 'less'}, where "
        f"{seconds(abs(due))} {'more' if due >= 0 else 'less'} are due. Compute is taken to be "
        f"that on {gpus} GPUs, whose step exposes {seconds(few.exposed)} of communication."
    ]


class _Links:
    """Expected times of collectives on the links of a job's nodes."""

    def __init__(self, nodes: TrainingNodes, gpus: int) -> None:
        raw = with_machine({"cluster": {**nodes.cluster, "world_size": gpus}}, Path())
        self.cluster, self.cost = nodes.sized(nodes.check_size(gpus)), cost_of(raw, Path())
        self.machine, self.gpus = nodes.machine, gpus
        self.title = self.machine or "the assumed hardware"

    def bus_bandwidth(self, size: float) -> tuple[float, float, float] | None:
        """Usual bus bandwidth of an all_reduce and its 90 % interval; None if untimed [bytes/s]."""
        wiring, factor = wiring_of(self.cluster), bus_bandwidth_factor("all_reduce", self.gpus)
        timed = self.cost.timed and self.cost.problem_with("all_reduce", wiring) is None
        time = self.cost.seconds("all_reduce", size, wiring) if timed and self.gpus > 1 else 0.0
        if not time or factor is None:
            return None
        known = [*machine_calibration(self.machine, Path()), *known_of_cost(self.cost, wiring)]
        ends = [
            (low.seconds("all_reduce", size, wiring), high.seconds("all_reduce", size, wiring))
            for low, high in cost_variants(self.cost, known)
        ]
        interval = spread(time, ends, residual(known))
        moved = size * factor
        return moved / time, moved / interval.high, moved / max(interval.low, 1e-12)


def _derived(job: ReportedJob, links: _Links) -> Iterator[Finding]:
    text = f"{_of(job.comm, job)} is exposed communication"
    rates = links.bus_bandwidth(LARGE)
    factor = bus_bandwidth_factor("all_reduce", job.gpus)
    if rates is not None and factor and job.comm:
        usual, low, high = (rate * job.comm / factor for rate in rates)
        text += (
            f"; in this time {links.title}'s links all_reduce {nbytes(usual)} among {job.gpus} "
            f"GPUs (90 %: {nbytes(low)} to {nbytes(high)}; bus bandwidth {_rate(rates[0])}): "
            f"gradients of {_billions(usual / 4)} parameters in float32, of {_billions(usual / 2)} "
            "in 16 bits. Fewer parameters mean slower links, a slow rank, or nothing that "
            "overlaps"
        )
    yield Finding("exposed_communication", job.comm / job.step, f"{text}.", (), job.comm)
    text = (
        f"{_of(job.compute, job)} is compute and all else; with --model it is compared with what "
        "that model's kernels take, with --parameters its communication with what they expose. "
        f"With all communication hidden a step takes {seconds(job.compute)} at best"
    )
    yield Finding("compute_bound", job.compute / job.step, f"{text}.", (), job.compute)


SLIPS = {
    "no_sync": (
        "with gradients exchanged after each micro-batch",
        "gradients exchanged once a step (no_sync around all micro-batches but the last)",
    ),
    "overlap": (
        "without any overlap with backward",
        "communication that overlaps backward, as DDP's does",
    ),
}
"""Options that jobs often lack: what a job is without one, and its repair."""


class _Simulated(NamedTuple):
    """A scenario and its steady step, in two parts [s]."""

    scenario: Scenario
    metrics: Metrics

    @property
    def step(self) -> float:
        return float(self.metrics.step_time_s)

    @property
    def comm(self) -> float:
        """Exposed communication, with waiting."""
        return float(self.metrics.exposed_comm_s + self.metrics.wait_s)


class _Job:
    """A job with a known model or number of parameters.

    Attributes
    ----------
    expected : dict
        As `Diagnosis.expected`.
    remarks : list of str
        What was assumed.
    """

    def __init__(self, job: ReportedJob, links: _Links) -> None:
        self.job, self.links, self.remarks = job, links, list[str]()
        self.raw, self.microbatch = self._raw()
        self.whole: Result | None = None
        if job.model is not None:
            self.whole = _whole(checked_here(self.raw))
        self.planned = self._with_reported_compute()
        self.exposed, self.exposed_in = self._exposed()
        tokens = self.planned.scenario.workload.tokens_per_sample(0, Path())
        if tokens and job.sequence_length is None:
            words = f"samples of {tokens:,.0f} tokens; --sequence-length sets another length."
            self.remarks.insert(0, words)
        self.expected = self._expected()

    def _raw(self) -> tuple[dict[str, Any], int]:
        """The scenario by the model's kernels, or of so many parameters."""
        job, model = self.job, self.job.model
        if model is None:
            layers = min(LAYERS, job.parameters or 1)
            model = {"kind": "parameters", "num_params": job.parameters, "num_layers": layers}
        place, precision = job.nodes, job.precision
        if precision is None:
            precision = place.usual_precision
            if isinstance(precision, dict):  # as torch.autocast trains, with 32-bit gradients
                precision = {**precision, "kind": "amp"}
        request = FitsRequest(model, job.gpus, sequence_length=job.sequence_length)
        raw = raw_of(request, place, job.gpus, Method("full", job.strategy, precision, "none"))
        # attention of a job of unknown age: as a scenario has it
        raw["workload"] |= {"attention": None, "grad_accum": job.grad_accum}
        if job.model is None:
            raw["workload"]["compute"] = self._measured(1, job.compute / job.grad_accum)
            return with_data(raw, 1)[1], 1
        if job.microbatch is not None:
            return with_data(raw, job.microbatch)[1], job.microbatch
        return self._nearest(raw)

    def _nearest(self, raw: dict[str, object]) -> tuple[dict[str, Any], int]:
        """The micro-batch with kernels that take nearest to the reported compute."""
        compute = self.job.compute / self.job.grad_accum
        scenario = with_data(raw, 1)[0]
        times = CallTimes(scenario.workload, roofline_of(scenario.cluster))

        def takes(size: int) -> float:
            return sum(times.whole(name, 0, size) for name in ("forward", "backward"))

        low, high = 1, LARGEST_BATCH
        while high - low > 1:  # takes more the larger it is
            middle = (low + high) // 2
            low, high = (low, middle) if takes(middle) > compute else (middle, high)
        size = high if takes(high) - compute < compute - takes(low) else low
        played = _played(with_data(raw, size)[0])  # with its update and overlap
        mean = (played.step - played.comm) / size
        size = max(round(self.job.compute / mean), 1)
        scenario, changed = with_data(raw, size)
        is_near = 1 / SIMILAR <= size * mean / self.job.compute <= SIMILAR
        take = "take about" if is_near else "come nearest to"
        self.remarks.append(
            f"--microbatch is not given: {size} per GPU {take} the compute that was reported; "
            "give it, so that compute is checked as well."
        )
        if not fits(scenario.cluster, memory_needed(scenario).peak.tolist()):
            self.remarks.append(f"{size} samples per GPU do not fit the memory of a device.")
        return changed, size

    def _measured(self, microbatch: int, takes: float) -> dict[str, Any]:
        point = {"microbatch": microbatch, "step_time": format_quantity(takes, "time")}
        return {"kind": "measured", "points": [point]}

    def _with_reported_compute(self) -> _Simulated:
        """The job with links as they should be, whose compute takes as long as was reported."""
        takes = self.job.compute / self.job.grad_accum
        measured = {"compute": self._measured(self.microbatch, takes)}
        scenario = checked_here({**self.raw, "workload": self.raw["workload"] | measured})
        simulated = _played(scenario)
        for _ in range(ADJUSTED):  # overlapping communication stretches compute, as the job's
            takes *= self.job.compute / (simulated.step - simulated.comm)
            simulated = _played(_taking(scenario, self._measured(self.microbatch, takes)))
        return simulated

    def _exposed(self) -> tuple[float, tuple[float, float]]:
        """Communication that the job should expose, and its 90 % interval [s]."""
        comm, ends = self.planned.comm, interval_of(self.planned.scenario, self.planned.step)
        if ends is None:
            return comm, (comm, comm)
        low, high = (comm + end - self.planned.step for end in ends)
        return comm, (max(low, 0.0), max(high, comm))

    def _expected(self) -> dict[str, Any]:
        if self.whole is None:
            compute, comm, compute_in = self.job.compute, self.exposed, None
            step, low, high = (compute + end for end in (comm, *self.exposed_in))
        else:
            m = self.whole.metrics
            step, comm = m.step_time_s, m.exposed_comm_s + m.wait_s
            compute = step - comm
            reach = exp(NORMAL_90 * BY_DATA_SHEET)
            compute_in = [compute / reach, compute * reach]
            low, high = m.interval_s or (step * compute_in[0] / compute, step * reach)
        return {
            "step_time_s": step,
            "interval_s": [low, high],
            "compute_s": compute,
            "compute_interval_s": compute_in,
            "exposed_comm_s": comm,
            "exposed_comm_interval_s": list(self.exposed_in),
            "microbatch": self.microbatch if self.whole is not None else None,
        }

    # Findings ------------------------------------------------------------------------------------

    def findings(self, remedies: bool) -> Iterator[Finding]:
        yield from self._of_compute()
        job, (_, high) = self.job, self.exposed_in
        if self.contradicts is not None:
            text = f"{self._exposed_words(job.comm)}; not judged, as the compute contradicts it."
            yield self._finding("exposed_communication", job.comm, text)
            return
        excess = max(job.comm - self.exposed, 0.0) if job.comm > high else 0.0
        slip, without = self._slip() if excess else (None, None)
        helps = self._remedies(without) if remedies and job.comm else ()
        if slip is not None and without is not None:
            lack, repair = SLIPS[slip]
            text = (
                f"{self._exposed_words(job.comm)}; {lack} it would be "
                f"{seconds(without.comm)}, about what was reported"
            )
            # The same change is among those that were tried.
            helps = tuple(
                remedy for remedy in helps if not remedy.change.startswith(f"strategy.{slip}")
            )
            tried = (Remedy(repair, job.compute + self.exposed), *helps) if remedies else ()
            yield self._finding("exposed_communication", job.comm, f"{text}.", tried)
            return
        usual = job.comm - excess
        if excess:
            time = job.compute + self.exposed
            repaired = Remedy("links as they should be, and no slow rank", time)
            both = tuple(sorted((repaired, *helps), key=lambda remedy: remedy.step_time_s))
            both = both if remedies else ()
            yield self._finding("slow_link", excess, self._slow_words(excess), both)
        yield self._finding(
            "exposed_communication",
            usual,
            f"{self._exposed_words(usual)}.",
            () if excess else helps,
        )

    def _finding(
        self, cause: Cause, time: float, text: str, remedies: tuple[Remedy, ...] = ()
    ) -> Finding:
        return Finding(cause, time / self.job.step, text, (), time, remedies)

    @property
    def contradicts(self) -> str | None:
        """Why the reported compute cannot be that of the model; None if it can be."""
        job, tokens = self.job, self.planned.scenario.workload.tokens_per_sample(0, Path())
        if self.whole is None or job.compute >= self.expected["compute_interval_s"][0]:
            return None
        shorter = "a shorter sequence (--sequence-length), " if tokens else ""
        length = f" of {tokens:,.0f} tokens" if tokens else ""
        return (
            f"the figures contradict the model: {seconds(job.compute)} of compute is less than "
            f"{seconds(self.expected['compute_interval_s'][0])}, the least that {self.microbatch} "
            f"x {job.grad_accum} sample(s){length} take; is it {shorter}a smaller batch, another "
            "model or precision?"
        )

    def _of_compute(self) -> Iterator[Finding]:
        job, known = self.job, self.expected
        if self.whole is None:
            text = (
                f"{_of(job.compute, job)} is compute and all else; --model in place of "
                "--parameters says whether that is much"
            )
            yield self._finding("compute_bound", job.compute, f"{text}.")
            return
        compute, (low, high) = known["compute_s"], known["compute_interval_s"]
        model = kind_of(job.model)
        text = (
            f"{_of(job.compute, job)} is compute and all else, where {model} should take "
            f"{seconds(compute)} with {self.microbatch} sample(s) per GPU (90 %: {seconds(low)} to "
            f"{seconds(high)})"
        )
        if self.contradicts is not None:
            text = f"{self.contradicts} {text}"
        whole = self.whole.metrics
        if whole.mfu:
            text += f"; the MFU is {percent(whole.mfu * whole.step_time_s / job.step)}"
        parts = [
            f"{name} {percent(share * whole.step_time_s / compute)}"
            for name, share, _ in step_shares(self.whole)[: len(self.whole.compute_parts)]
            if share * whole.step_time_s >= WORTH * compute
        ]
        if parts:
            text += f"; of this compute {', '.join(parts)}"
        more = job.compute - compute if job.compute > high else 0.0
        yield self._finding("compute_bound", job.compute - more, f"{text}.")
        if more:
            why = (
                f"{_of(more, job)} is more than {model} should take in compute: data that come "
                "late, a host that launches too slowly, copies, smaller kernels or a device that "
                "is throttled; a trace says which"
            )
            yield self._finding("unexplained", more, f"{why}.")

    def _exposed_words(self, part: float) -> str:
        (low, high), nodes, sent = self.exposed_in, self.links.cluster.num_nodes, self._sent()
        place = f" over the network between {nodes} nodes" if nodes > 1 and sent else ""
        text = (
            f"{_of(part, self.job)} is exposed communication{place}, where such a job exposes "
            f"{seconds(self.exposed)} (90 %: {seconds(low)} to {seconds(high)})"
        )
        text += f" and sends {nbytes(sent)} per GPU" if sent else ""
        if place and part == self.job.comm and (rates := self._bus_bandwidths()):
            text += f", {_rate(rates[0])} where nothing is hidden"
        return text

    def _bus_bandwidths(self) -> tuple[float, float, float, float] | None:
        """The reported bus bandwidth and that of the links; None where part is hidden [bytes/s]."""
        sent, factor = self._sent(), bus_bandwidth_factor("all_reduce", self.job.gpus) or 1.0
        rates = self.links.bus_bandwidth(min(sent / factor, BUCKET)) if sent else None
        implied = sent / self.job.comm if self.job.comm else 0.0
        return None if rates is None or implied > rates[2] else (implied, *rates)

    def _slow_words(self, excess: float) -> str:
        job, sent = self.job, self._sent()
        text = f"{_of(excess, job)} is more exposed communication than such links explain"
        if rates := self._bus_bandwidths():
            implied, usual, low, high = rates
            text += (
                f": {nbytes(sent)} per GPU in {seconds(job.comm)} is a bus bandwidth of "
                f"{_rate(implied)} where nothing is hidden, and {self.links.title} gives "
                f"{_rate(usual)} (90 %: {_rate(low)} to {_rate(high)})"
            )
            others = [*self._machines_like(implied)]
            if others:
                text += f"; {_rate(implied)} is what {' and '.join(others)} gives"
        return f"{text}. Or the ranks wait for a slow one: traces of all ranks tell these apart."

    def _machines_like(self, rate: float) -> Iterator[str]:
        """Machines with the same devices and links of about this bus bandwidth."""
        device = self.job.nodes.figures.get("device")
        for name in machines_with(device) if isinstance(device, str) else ():
            if name == self.job.machine:
                continue
            try:
                rates = _Links(place_of(name, None), self.job.gpus).bus_bandwidth(LARGE)
            except ScenarioError:  # has no room for so many
                continue
            if rates is not None and 1 / SIMILAR <= rates[0] / rate <= SIMILAR:
                yield name

    def _sent(self) -> float:
        return float(max(self.planned.metrics.bytes_sent_per_rank))

    def _slip(self) -> tuple[str | None, _Simulated | None]:
        """The slip of `SLIPS` with which the job exposes about what was reported, if any."""
        scenario = self.planned.scenario
        for slip in SLIPS:
            if not dict(scenario.strategy).get(slip):
                continue
            changed = variant(scenario, {f"strategy.{slip}": False}, STEPS)
            without = self.planned if changed is None else _played(changed)
            is_near = without.comm <= SIMILAR * self.job.comm <= SIMILAR**2 * without.comm
            if is_near and without.comm > self.planned.comm:
                return slip, without
        return None, None

    # Remedies ------------------------------------------------------------------------------------

    def _remedies(self, without: _Simulated | None) -> tuple[Remedy, ...]:
        """Remedies for the job as it was reported, the best first."""
        base = without or self._as_reported()
        advice = would_help(base.scenario, times_alone(base.scenario) or simulate(base.scenario))
        return tuple(
            Remedy(change.replace("x the samples)", ALIKE), self.job.step / gain)
            for change, gain in (advice.changes if advice else ())
        )

    def _as_reported(self) -> _Simulated:
        """The job with links that expose as much communication as was reported."""
        simulated, takes = self.planned, self.job.compute / self.job.grad_accum
        if self.job.comm <= self.exposed_in[1]:
            return simulated
        whole = max(simulated.metrics.comm_s, 1e-9)
        factor = 1 + (self.job.comm - simulated.comm) / whole
        for _ in range(ROUNDS):
            slowed = _slowed(self.planned.scenario, factor)
            simulated = _played(_taking(slowed, self._measured(self.microbatch, takes)))
            if abs(simulated.comm - self.job.comm) <= NEAR * self.job.comm:
                break
            takes *= self.job.compute / (simulated.step - simulated.comm)
            # Once nothing more can be hidden, all that is added is exposed.
            factor = max(factor + (self.job.comm - simulated.comm) / whole, 1.0)
        return simulated


def _played(scenario: Scenario) -> _Simulated:
    """Simulate a few steps of a scenario, timing only."""
    return _Simulated(scenario, Stopwatch(scenario).metrics)


def _whole(scenario: Scenario) -> Result:
    """The result of a scenario, timing only, with its interval and what its compute is spent on."""
    result = times_alone(scenario) or simulate(scenario)
    m = result.metrics
    result.metrics = replace(m, interval_s=interval_of(scenario, m.step_time_s))
    result.compute_parts = compute_parts(scenario, m.compute_s, peak_flops(scenario))
    return result


def _taking(scenario: Scenario, measured: Mapping[str, object]) -> Scenario:
    """The same with another measured compute."""
    compute = type(scenario.workload.compute).model_validate(measured)
    workload = scenario.workload.model_copy(update={"compute": compute})
    return scenario.model_copy(update={"workload": workload})


def _slowed(scenario: Scenario, factor: float) -> Scenario:
    """The same with links of a part of their bandwidth: those that collectives wait for."""
    cluster = scenario.cluster

    def slower(links: Link | list[Link] | None) -> Link | list[Link] | None:
        if links is None or isinstance(links, list):
            return None if links is None else [one_slower(link) for link in links]
        return one_slower(links)

    def one_slower(link: Link) -> Link:
        return link.model_copy(update={"bandwidth": link.bandwidth / factor})

    between = cluster.inter_node if cluster.num_nodes > 1 else None
    update: Raw = {"link": slower(cluster.link)}
    if between is not None:
        update = {"inter_node": between.model_copy(update={"link": slower(between.link)})}
    return scenario.model_copy(update={"cluster": cluster.model_copy(update=update)})


def _of(value: float, job: ReportedJob) -> str:
    return f"{seconds(value)} of a step's {seconds(job.step)} ({percent(value / job.step)})"


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


def _billions(number: float) -> str:
    return f"{number / 1e9:.2g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"
