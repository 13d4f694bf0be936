"""Records of the probes: what they hold, how they are written and read, and those of DDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from simdp.files import format_yaml, put_text, read_yaml, write_whole
from simdp.probes.arguments import progress
from simdp.probes.figures import (
    StepSeconds,
    median,
    medians,
    microseconds,
    milliseconds,
    noise,
    percent,
    percentiles,
)
from simdp.probes.zoo import Settings, scenario_precision
from simdp.units import parse

# Record -------------------------------------------------------------------------------------------


class Record(BaseModel):
    """A part of a record; what was not measured is left out of its file."""

    model_config = ConfigDict(frozen=True)

    @model_serializer(mode="wrap")
    def _measured(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields = type(self).model_fields
        return {
            key: value
            for key, value in handler(self).items()
            if value is not None or fields[key].is_required()
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record from its file."""
        return cls.model_validate(read_yaml(path))


class Machine(Record):
    """Names and versions of a machine."""

    cpu: str
    cores: int
    threads_per_rank: int
    platform: str
    python: str
    torch: str
    gpu: str | None = None
    multiprocessors: int | None = None
    gpus: int | None = None
    cuda: str | None = None
    nccl: str | None = None

    @property
    def device_name(self) -> str:
        """Name of the GPU, or of the CPU."""
        return self.cpu if self.gpu is None else self.gpu


class DeviceFigures(Record):
    """Figures of a device, as quantities for ``cluster.device`` of a scenario."""

    peak: dict[str, str]  # by data type
    efficiency: float = 1.0
    memory: str
    memory_bandwidth: str
    launch: str


class Percentiles(Record):
    """Percentiles of times."""

    p10: str
    p50: str
    p75: str
    p90: str


class MeasuredPoint(Record):
    """Time of a step without DDP."""

    microbatch: int
    step_time: str


class MeasuredCompute(Record):
    """The block ``compute: measured`` of a scenario."""

    kind: str = "measured"
    points: list[MeasuredPoint]
    forward_fraction: float


class StepMemory(Record):
    """Memory of a step: between steps, and at most."""

    at_rest: str
    allocated: str
    reserved: str | None = None


class HostTimes(Record):
    """Times of the host for a step that begins on an idle GPU."""

    step: str
    forward: str
    backward: str
    update: str


class LayersStep(Record):
    """A step of one micro-batch without DDP."""

    microbatch: int
    step_time: Percentiles
    forward: str
    backward: str
    update: str
    host: HostTimes | None = None  # of a GPU
    memory: StepMemory | None = None  # of a GPU
    sum_of_layers: str | None = None
    profile: str | None = None  # file of the layers' times


class FullStep(Record):
    """A micro-batch that does not fit into memory."""

    microbatch: int
    out_of_memory: Literal[True] = True


class PrecisionSteps(Record):
    """Steps of a model in one precision."""

    steps: list[LayersStep | FullStep]
    compute: MeasuredCompute | None = None


class ModelSteps(Record):
    """Steps of a model by precision, as it is and compiled."""

    model: dict[str, object]
    precisions: dict[str, PrecisionSteps] | None = None
    compiled: dict[str, PrecisionSteps] | None = None


class LayersRecord(Record):
    """The record of `simdp.probes.layers`."""

    probe: str = "layers"
    machine: Machine
    device: DeviceFigures
    optimizer: str | None = None
    models: dict[str, ModelSteps]

    def fitting(self, model: str, precision: str) -> list[LayersStep]:
        """Return the steps of a model in a precision that fit into memory."""
        steps = (self.models[model].precisions or {})[precision].steps
        return [step for step in steps if isinstance(step, LayersStep)]


class ExposedTimes(Record):
    """Communication that DDP adds to a step without it."""

    over_skipped: str
    over_no_sync: str


class DDPRun(Record):
    """Steps of one kind."""

    world_size: int
    variant: str
    bucket_cap: str | None = None
    step_time: Percentiles
    forward: str
    backward: str
    update: str
    noise: str
    foreign: str
    exposed_communication: ExposedTimes | None = None
    logging: dict[str, str | int | float] | None = None


class DDPModel(Record):
    """Steps of a model."""

    model: dict[str, object]
    gradients: int
    gradient_bytes: int
    runs: list[DDPRun]


class DDPSettings(Record):
    """Arguments of `simdp.probes.ddp`."""

    world_sizes: list[int]
    backend: str
    device: str
    threads: int
    ranks_per_device: int
    precision: list[str]
    models: list[str]
    set: list[str]
    bucket_caps: list[int | None]
    microbatch: list[int]
    optimizer: str
    warm_up: int
    steps: int
    max_foreign: float
    tries: int
    rounds: int
    table: str | None


class Overheads(Record):
    """What DDP adds to a step."""

    copies: bool | None = None
    hook: str
    compute_slowdown: float | None = None
    collective_slowdown: float | None = None


class ScenarioCluster(Record):
    """The block ``cluster``."""

    machine: str | None = None
    world_size: int
    ranks_per_device: int | None = None
    device: DeviceFigures | None = None
    topology: str | None = None
    link: str | dict[str, str] | None = None
    overheads: Overheads


class ScenarioWorkload(Record):
    """The block ``workload``."""

    model: dict[str, object]
    optimizer: str
    microbatch: int
    precision: str | dict[str, str]
    steps: int
    compute: MeasuredCompute
    attention: str | None = None


class ScenarioPoint(Record):
    """A measured step of a scenario, or a peak of its memory."""

    set: dict[str, object]
    step_time: str | None = None
    role: str | None = None
    allocated: str | None = None


class ScenarioMeasured(Record):
    """The block ``measured``."""

    source: str
    noise: str
    points: list[ScenarioPoint]
    memory: list[ScenarioPoint] | None = None


class ProbeScenario(Record):
    """A scenario that should reproduce a model's runs."""

    name: str
    cluster: ScenarioCluster
    workload: ScenarioWorkload
    strategy: dict[str, str]
    collectives: dict[str, dict[str, str]] | None = None
    numerics: bool
    measured: ScenarioMeasured


class DDPRecord(Record):
    """The record of `simdp.probes.ddp`."""

    probe: str = "ddp"
    machine: Machine
    settings: DDPSettings
    device: DeviceFigures
    models: dict[str, DDPModel]
    scenarios: dict[str, ProbeScenario]


def write_record(path: Path, record: Record | Mapping[str, object], probe: str) -> None:
    """Write the record of a probe, and print its path."""
    write_yaml(path, record, f"Written by python -m simdp.probes.{probe}.")
    progress(f"record: {path}")


def write_yaml(path: Path, content: Record | Mapping[str, object], comment: str) -> None:
    """Write a record or plain data as YAML atomically, after a comment; creates the folder."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    plain = content.model_dump() if isinstance(content, Record) else content
    write_text(path, lines + format_yaml(plain))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; creates its folder."""
    write_whole(path, partial(put_text, text))


# Runs of DDP -------------------------------------------------------------------------------------


class RunTimes(NamedTuple):
    """Times of one kind of step, of all ranks together."""

    world_size: int
    variant: str
    bucket_cap: int | None  # in MiB; None is torch's default
    foreign: list[float]  # cores used by other programs, as shares
    rounds: list[StepSeconds]
    logging: dict[str, str | int | float]  # DDP's own

    @property
    def key(self) -> RunKey:
        """World size, variant and bucket cap."""
        return self.world_size, self.variant, self.bucket_cap

    @property
    def steps(self) -> StepSeconds:
        """Steps of all rounds."""
        return StepSeconds.joined(self.rounds)

    @property
    def median(self) -> float:
        """Median of the steps [s]."""
        return median(self.steps.step)

    @property
    def noise(self) -> float:
        """Noise of the steps between rounds."""
        return noise([times.step for times in self.rounds])


RunKey = tuple[int, str, int | None]


class ModelTimes(NamedTuple):
    """A model and the times of its steps."""

    settings: Settings
    gradients: int
    gradient_bytes: int
    runs: list[RunTimes]

    def times_of(self, world_size: int, variant: str) -> list[float]:
        """Return times of all steps of a kind, whatever their buckets [s]."""
        kinds = [run for run in self.runs if (run.world_size, run.variant) == (world_size, variant)]
        return [seconds for run in kinds for seconds in run.steps.step]


class DDPTimes(NamedTuple):
    """Measurements of the ranks."""

    machine: Machine
    device: DeviceFigures
    models: dict[str, ModelTimes]


class About(NamedTuple):
    """Data of a scenario in addition to the times."""

    backend: str  # of the collectives
    device: str  # ``"cpu"`` or ``"cuda"``
    ranks_per_device: int  # ranks that share a GPU
    microbatch: dict[str, int]  # samples per rank, by model
    precision: str  # as in the probe's arguments
    optimizer: str  # as in the probe's arguments
    table: str | None  # a log of `simdp.probes.collectives`


def ddp_record(times: DDPTimes, about: About, settings: DDPSettings) -> DDPRecord:
    """Return the record of `simdp.probes.ddp`.

    Parameters
    ----------
    times : DDPTimes
        Of the ranks.
    about : About
        Settings of the measurement.
    settings : DDPSettings
        The recorded arguments of the probe.
    """
    return DDPRecord(
        machine=times.machine,
        settings=settings,
        device=times.device,
        models={
            name: DDPModel(
                model=asdict(model.settings),
                gradients=model.gradients,
                gradient_bytes=model.gradient_bytes,
                runs=_runs(model.runs),
            )
            for name, model in times.models.items()
        },
        scenarios={name: ddp_scenario(name, times, about) for name in times.models},
    )


def _runs(runs: Sequence[RunTimes]) -> list[DDPRun]:
    """Return runs as quantities, with their exposed communication."""
    seconds = {run.key: run.median for run in runs}
    return [_run(run, seconds) for run in runs]


def _run(run: RunTimes, seconds: Mapping[RunKey, float]) -> DDPRun:
    def over(variant: str) -> str:
        return milliseconds(run.median - seconds[run.world_size, variant, run.bucket_cap])

    cap = "default" if run.bucket_cap is None else f"{run.bucket_cap} MiB"
    exposed = None
    if run.variant == "ddp":
        exposed = ExposedTimes(over_skipped=over("skipped"), over_no_sync=over("no_sync"))
    return DDPRun(
        world_size=run.world_size,
        variant=run.variant,
        bucket_cap=None if run.variant == "baseline" else cap,
        step_time=percentiles(run.steps.step),
        **medians(run.steps.parts),
        noise=percent(run.noise),
        foreign=percent(max(run.foreign)),
        exposed_communication=exposed,
        logging=run.logging or None,
    )


# Scenarios ---------------------------------------------------------------------------------------

STEPS = 4
"""Simulated steps of a written scenario; the last ones are steady."""


def ddp_scenario(name: str, times: DDPTimes, about: About) -> ProbeScenario:
    """Return the scenario that should reproduce a model's runs.

    Compute is calibrated on steps of the fewest ranks without DDP; DDP's overhead, copies and a
    hook per gradient, on those with it. All other steps are predicted.
    """
    model, device = times.models[name], times.device
    smallest = min(run.world_size for run in model.runs)
    base = next(run for run in model.runs if run.key == (smallest, "baseline", None))
    microbatch, machine = about.microbatch[name], times.machine
    source = f"simdp.probes.ddp on {machine.device_name}, torch {machine.torch}, {about.backend}"
    return ProbeScenario(
        name=f"probe_{name}",
        cluster=ScenarioCluster(
            world_size=smallest,
            ranks_per_device=about.ranks_per_device if about.ranks_per_device > 1 else None,
            device=device,
            topology="switch",
            link="pcie4-x16" if about.device == "cuda" else HOST_LINK,  # a table gives the costs
            overheads=_overheads(times, model, smallest, about.device),
        ),
        workload=ScenarioWorkload(
            model=asdict(model.settings),
            optimizer=about.optimizer,
            microbatch=microbatch,
            precision=scenario_precision(about.precision),
            steps=STEPS,
            compute=measured_compute({microbatch: base.steps}),
        ),
        strategy={"kind": "ddp"},
        collectives=about.table and {"cost": {"kind": "table", "path": about.table}},
        numerics=False,
        measured=_measured(model.runs, base, source),
    )


def _overheads(times: DDPTimes, model: ModelTimes, smallest: int, device: str) -> Overheads:
    """Return DDP's overhead without communication: copies at memory bandwidth, the rest per hook.

    A gradient is read and written when copied into a bucket, and again when copied out. If a rank's
    cores are too few for the threads of the backend, training and communication each get half of
    the time while both are active.
    """
    alone = median(model.times_of(smallest, "baseline"))
    wrapped = median(model.times_of(smallest, "skipped"))
    copies = 4 * model.gradient_bytes / parse(times.device.memory_bandwidth, "bandwidth")
    hook = max(wrapped - alone - copies, 0.0) / model.gradients
    largest, machine = max(run.world_size for run in model.runs), times.machine
    is_crowded = device == "cpu" and machine.cores < largest * (machine.threads_per_rank + 1)
    slowdown = 1.0 if is_crowded else None
    return Overheads(
        copies=True,
        hook=microseconds(hook),
        compute_slowdown=slowdown,
        collective_slowdown=slowdown,
    )


HOST_LINK = {"alpha": "50 us", "bandwidth": "2 GB/s"}
"""Between processes of one host over loopback TCP, in orders of magnitude; a table replaces it."""


def measured_compute(steps: Mapping[int, StepSeconds]) -> MeasuredCompute:
    """Return ``compute: measured`` from steps of one rank, by micro-batch."""
    forward = sum(median(times.forward) for times in steps.values())
    backward = sum(median(times.backward) for times in steps.values())
    return MeasuredCompute(
        points=[
            MeasuredPoint(microbatch=size, step_time=milliseconds(median(times.step)))
            for size, times in steps.items()
        ],
        forward_fraction=round(forward / (forward + backward), 4),
    )


def _measured(runs: Sequence[RunTimes], base: RunTimes, source: str) -> ScenarioMeasured:
    """Return the ``measured:`` block: the fewest ranks calibrate, more are predicted."""
    smallest = base.world_size
    with_ddp = [run for run in runs if run.variant == "ddp"]
    points = [_point(run, smallest) for run in with_ddp]
    if smallest == 1:  # `single` has one rank; several without communication are no step of ours
        points.insert(0, _point(base, smallest))
    variances = [run.noise**2 / len(run.rounds) for run in [base, *with_ddp]]
    error = sqrt(sum(variances) / len(variances))  # of a figure, which all rounds make together
    return ScenarioMeasured(source=source, noise=percent(error), points=points)


def _point(run: RunTimes, smallest: int) -> ScenarioPoint:
    changes: dict[str, object] = {"cluster.world_size": run.world_size}
    if run.variant == "baseline":
        changes |= {"strategy": "single"}
    elif run.bucket_cap is not None:
        changes |= {"strategy.bucket_cap": f"{run.bucket_cap} MiB"}
    role = "calibration" if run.world_size == smallest else "predicted"
    return ScenarioPoint(set=changes, step_time=milliseconds(run.median), role=role)
