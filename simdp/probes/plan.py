"""The parts of `python -m simdp probe`: what it measures, for how long, and in which order.

Each part is a call of one of the probes. Torch is imported where it is needed, after a check.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from simdp.probes import arguments, collectives, ddp, layers, zoo
from simdp.probes.arguments import ProbeError, printed_lines, require_torch
from simdp.probes.figures import PAUSE
from simdp.probes.findings import Failure, Findings
from simdp.probes.record import DDPRecord, LayersRecord, StepMemory
from simdp.units import parse

# Request -----------------------------------------------------------------------------------------

MODELS = {"cpu": ["mlp", "transformer"], "cuda": ["mlp", "resnet50", "bert-base", "gpt2"]}
"""Models by device, unless others are given."""

MICROBATCHES = {
    "cpu": {
        "mlp": [8, 64],
        "transformer": [1, 4],
        "bert-base": [1, 4],
        "resnet50": [1, 4],
        "gpt2": [1, 2],
        "llama-1b": [1, 2],
    },
    "cuda": {
        "mlp": [8, 128, 2048],
        "transformer": [8, 64, 512],
        "bert-base": [1, 8, 32],
        "resnet50": [1, 8, 64],
        "gpt2": [1, 4, 16],
        "llama-1b": [1, 4],
    },
}
"""The same, of samples in a micro-batch: on a GPU from where the host bounds the step."""

STEPS = {"cpu": 10, "cuda": 20}
"""Timed steps of every measurement, unless a number or a budget of minutes is given."""

FEWEST = 3
"""Timed steps within any budget."""

BF16_SINCE = (8, 0)
"""The first capability of CUDA whose tensor cores have bfloat16 and TF32."""


class ProbeOptions(NamedTuple):
    """Options as they are given; None for what suits the device."""

    device: str | None = None
    models: str | None = None
    changes: Sequence[str] = ()  # of models, as ``--set`` of the probes
    precision: str | None = None
    microbatch: str | None = None
    optimizer: str = "adamw"
    world_sizes: str | None = None
    backend: str | None = None
    steps: int | None = None
    minutes: float | None = None
    out: Path = Path("runs/probe")


class ProbeRequest(NamedTuple):
    """What is measured."""

    device: str
    models: dict[str, zoo.Settings]  # settings by name
    changes: Sequence[str]
    precisions: list[str]  # DDP runs in the first
    microbatches: dict[str, list[int]]  # by model
    optimizer: str
    world_sizes: list[int]
    backend: str
    steps: int  # timed steps of every measurement; at most, if there is a budget
    minutes: float | None  # budget
    out: Path


T = TypeVar("T")


def _read(option: str, read: Callable[[str], T], text: str | None) -> T | None:
    """Return the value of an option; None if it is not given."""
    if text is None:
        return None
    try:
        return read(text)
    except argparse.ArgumentTypeError as error:
        raise ProbeError(f"{option}: {str(error).rstrip('.')}; see --help.") from None


def read_options(options: ProbeOptions) -> ProbeRequest:
    """Check the options, and complete them for the device.

    Raises
    ------
    ProbeError
        If one is wrong, torch is missing, or the device is.
    """
    known = arguments.one_of("precision", arguments.PRECISIONS)
    device = _read("--device", arguments.one_of("device", arguments.DEVICES), options.device)
    names = _read("--models", arguments.listed(str), options.models)
    precisions = _read("--precision", arguments.listed(known), options.precision)
    counts = arguments.listed(arguments.positive)
    sizes = _read("--microbatch", counts, options.microbatch)
    world_sizes = _read("--world-sizes", counts, options.world_sizes)
    backend = _read("--backend", arguments.one_of("backend", arguments.BACKENDS), options.backend)
    optimizers = arguments.one_of("optimizer", arguments.OPTIMIZERS)
    _read("--optimizer", optimizers, options.optimizer)
    _check_time(options)
    if names is not None:
        zoo.chosen(names, options.changes)
    if device is not None:
        arguments.check_device(device, backend or "gloo", 1, precisions or ())
    require_torch()
    _refuse_torchrun()
    device = _present(device)
    backend = backend or ("nccl" if device == "cuda" else "gloo")
    precisions = precisions or _usual_precisions(device)
    arguments.check_device(device, backend, 1, precisions)
    models = zoo.chosen(names or MODELS[device], options.changes)
    return ProbeRequest(
        device=device,
        models=models,
        changes=options.changes,
        precisions=precisions,
        microbatches={name: sorted(sizes or MICROBATCHES[device][name]) for name in models},
        optimizer=options.optimizer,
        world_sizes=_possible(world_sizes, device),
        backend=backend,
        steps=options.steps or STEPS[device],
        minutes=options.minutes,
        out=options.out,
    )


def _check_time(options: ProbeOptions) -> None:
    """Reject numbers of steps and minutes that are none, and both together."""
    if options.steps is not None and not 1 <= options.steps <= 10**6:
        raise ProbeError(f"--steps: {options.steps} is not a number of 1 to 1000000; see --help.")
    if options.minutes is not None and not 0 < options.minutes <= 10**4:
        raise ProbeError(f"--minutes: {options.minutes:g} is not > 0 and <= 10000; see --help.")
    if options.steps is not None and options.minutes is not None:
        raise ProbeError("--minutes: decides the number of steps; leave --steps out.")


def _refuse_torchrun() -> None:
    from simdp.probes.group import by_torchrun

    if by_torchrun():
        raise ProbeError(
            "torchrun: probe starts its ranks itself; run it without, or run simdp.probes.ddp and "
            "simdp.probes.collectives under torchrun."
        )


def _present(device: str | None) -> str:
    """Return the device, by default a GPU where there is one."""
    import torch

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise ProbeError("--device: torch finds no GPU here; write --device cpu.")
    return device or ("cuda" if there else "cpu")


def _usual_precisions(device: str) -> list[str]:
    """Return the precisions that are usual on a device, the one that is trained in first."""
    import torch

    if device == "cpu":
        return ["full"]
    is_recent = torch.cuda.get_device_capability() >= BF16_SINCE
    return ["bf16", "tf32"] if is_recent else ["fp16", "full"]


def _possible(world_sizes: list[int] | None, device: str) -> list[int]:
    """Return the numbers of ranks: by default 1, 2, and on GPUs all."""
    import torch

    there = torch.cuda.device_count() if device == "cuda" else os.cpu_count() or 1
    if world_sizes is None:
        return sorted({1, min(2, there), there if device == "cuda" else 1})
    if device == "cpu" and max(world_sizes) > (most := 16 * there):
        raise ProbeError(
            f"--world-sizes: {max(world_sizes)} ranks on {there} cores; {most} at most."
        )
    if device == "cuda" and max(world_sizes) > there:
        raise ProbeError(
            f"--world-sizes: {max(world_sizes)} ranks on {there} GPU{'s' * (there > 1)}; write at "
            f"most {there}, or run simdp.probes.ddp with --ranks-per-device."
        )
    return sorted(world_sizes)


# Quick steps -------------------------------------------------------------------------------------


class QuickStep(NamedTuple):
    """Times of a model's first steps [s]."""

    start: float  # to build the model and run its first step
    step: float  # of the second
    gradient_bytes: int


Quick = dict[tuple[str, str, int], QuickStep]
"""By model, precision and micro-batch; without those that do not fit or cannot run."""


def quick_steps(request: ProbeRequest) -> Quick:
    """Run two steps of every model, precision and micro-batch."""
    import torch

    from simdp.probes.device import first_device, free

    torch.set_num_threads(1)
    quick: Quick = {}
    for name, settings in request.models.items():
        for precision in request.precisions:
            for microbatch in request.microbatches[name]:
                try:
                    taken = _quick_step(
                        settings, microbatch, precision, request.optimizer, request.device
                    )
                except RuntimeError:  # out of memory, for example: its part reports it
                    continue
                finally:
                    free(first_device(request.device))
                quick[name, precision, microbatch] = taken
    return quick


def _quick_step(
    settings: zoo.Settings, microbatch: int, precision: str, optimizer: str, device: str
) -> QuickStep:
    from simdp.probes.device import Stepper, first_device

    begin = time.perf_counter()
    stepper = Stepper(settings, microbatch, precision, optimizer, first_device(device))
    stepper.run(stepper.module, 0, 1)
    middle = time.perf_counter()
    stepper.run(stepper.module, 0, 1)
    end = time.perf_counter()
    nbytes = 4 * sum(parameter.numel() for parameter in stepper.module.parameters())
    return QuickStep(middle - begin, end - middle, nbytes)


# Parts -------------------------------------------------------------------------------------------


class ProbePart(NamedTuple):
    """A call of a probe, and an estimate of its time."""

    title: str
    """What is measured, and of what."""
    fixed: float
    """Seconds whatever the number of timed steps is, and of each of these."""
    per_step: float
    """Seconds whatever the number of timed steps is, and of each of these."""
    num_lines: int
    """Lines of progress that it prints."""
    run: Callable[[int, Findings], None]
    """Measures with a number of timed steps, and adds the record to the findings."""

    def seconds(self, steps: int) -> float:
        """Return the estimate for a number of timed steps [s]."""
        return self.fixed + self.per_step * steps


WARM_UP, ROUNDS, TRIES = 3, 2, 3
"""Untimed steps before each measurement; rounds of DDP and of collectives, and tries of each."""

BUCKET_CAPS = (1, 25)
"""Limits of DDP's buckets [MiB]."""

NUM_KINDS = 1 + 3 * len(BUCKET_CAPS)
"""Kinds of steps of `simdp.probes.ddp_runs`."""

NUM_REPLICAS = 1 + 2 * len(BUCKET_CAPS)
"""Replicas of a model that it keeps in memory."""

FULL = 0.9
"""Share of a device's memory that replicas may take."""

START, FIGURES, HOOKS = 8.0, 5.0, 1.5
"""Estimates: seconds until ranks have started; of a device's figures; and the factor by which hooks
lengthen a step."""

SPEED = {"gloo": 0.7e9, "nccl": 20e9}
"""Estimates of a ring's bandwidth, which the probe is there to measure [bytes/s]."""

COLLECTIVES = {
    "gloo": ["all_reduce", "all_gather"],
    "nccl": ["all_reduce", "all_gather", "reduce_scatter"],
}

LARGEST = {"cpu": 2**27, "cuda": 2**30}
"""Largest size of a collective [bytes]."""


def parts(request: ProbeRequest, quick: Quick) -> list[ProbePart]:
    """Return the parts of a request, in order."""
    several = [n for n in request.world_sizes if n > 1]
    return [
        *(_layers_part(request, name, quick) for name in request.models),
        *([_collectives_part(request, several, quick)] if several else []),
        *(_ddp_part(request, name, quick) for name in request.models),
    ]


def _layers_part(request: ProbeRequest, name: str, quick: Quick) -> ProbePart:
    mine = [taken for (model, _, _), taken in quick.items() if model == name]
    passes = 1 + HOOKS + (request.device == "cuda")
    sizes, precisions = request.microbatches[name], request.precisions
    return ProbePart(
        f"{name}: steps and layers, micro-batches {_comma_list(sizes)}, {_comma_list(precisions)}",
        FIGURES + sum(taken.start + passes * WARM_UP * taken.step for taken in mine),
        sum(passes * taken.step for taken in mine),
        len(sizes) * len(precisions) + 1,
        partial(_measure_layers, request, name),
    )


def _collectives_part(request: ProbeRequest, world_sizes: list[int], quick: Quick) -> ProbePart:
    names, sizes = COLLECTIVES[request.backend], _sizes(request, quick)
    speed = SPEED[request.backend]
    one_call = sum(2 * nbytes / speed for nbytes in sizes) + 1e-4 * len(sizes)
    cold = 64 if request.device == "cpu" else WARM_UP  # buffers that calls alternate between
    num_rounds = ROUNDS * len(names) * len(world_sizes)
    warm = num_rounds * (one_call * WARM_UP + cold * 1e-4 * len(sizes) + 2 * PAUSE)
    return ProbePart(
        f"{_comma_list(names)} of {_comma_list(world_sizes)} ranks, {request.backend}, 1 KiB to "
        f"{sizes[-1] // 2**20} MiB",
        START + warm,
        num_rounds * one_call,
        len(names) * len(world_sizes) + len(world_sizes),
        partial(_measure_collectives, request, world_sizes, sizes),
    )


def _sizes(request: ProbeRequest, quick: Quick) -> list[int]:
    """Return powers of two from 1 KiB to all gradients of the largest model, of 1 MiB or more."""
    largest = max((taken.gradient_bytes for taken in quick.values()), default=2**20)
    most = min(max(largest, 2**20), LARGEST[request.device])
    return [2**k for k in range(10, (most - 1).bit_length() + 1)]


def _ddp_part(request: ProbeRequest, name: str, quick: Quick) -> ProbePart:
    precision = request.precisions[0]
    mine = [quick[key] for key in quick if key[:2] == (name, precision)]
    slowest = max(mine, key=lambda taken: taken.step, default=QuickStep(0.0, 0.0, 0))
    fixed = START + FIGURES
    per_step = 0.0
    for n in request.world_sizes:
        cores = os.cpu_count() or 1
        crowd = max(1.0, n / cores) if request.device == "cpu" else 1.0
        wire = 2 * (n - 1) / n * slowest.gradient_bytes / SPEED[request.backend]
        one_step = NUM_KINDS * slowest.step * crowd + len(BUCKET_CAPS) * wire
        fixed += NUM_REPLICAS * slowest.start * crowd
        fixed += ROUNDS * (NUM_KINDS * 2 * PAUSE + WARM_UP * one_step)
        per_step += ROUNDS * one_step
    return ProbePart(
        f"{name}: DDP of {_comma_list(request.world_sizes)} ranks, {request.backend}, {precision}",
        fixed,
        per_step,
        NUM_KINDS * len(request.world_sizes) + 1,
        partial(_measure_ddp, request, name),
    )


def _comma_list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


# Measurements ------------------------------------------------------------------------------------


def _model(request: ProbeRequest, name: str) -> list[str]:
    """Return the arguments of one model."""
    changes = [change for change in request.changes if change.partition(".")[0].strip() == name]
    options = ["--device", request.device, "--models", name, "--optimizer", request.optimizer]
    return options + [word for change in changes for word in ("--set", change)]


def _comma(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def _measure_layers(request: ProbeRequest, name: str, steps: int, findings: Findings) -> None:
    out = request.out / "layers" / name
    options = ["--precision", _comma(request.precisions), "--warm-up", str(WARM_UP)]
    options += ["--microbatch", _comma(request.microbatches[name]), "--steps", str(steps)]
    layers.main([*_model(request, name), *options, "--out", str(out)])
    findings.layers[name] = LayersRecord.read(out / "steps.yaml")


def _measure_collectives(
    request: ProbeRequest, world_sizes: list[int], sizes: list[int], steps: int, findings: Findings
) -> None:
    options = ["--device", request.device, "--backend", request.backend]
    options += ["--world-sizes", _comma(world_sizes), "--calls", str(steps)]
    options += ["--collectives", _comma(COLLECTIVES[request.backend])]
    options += ["--sizes", _comma([f"{nbytes} B" for nbytes in sizes]), "--warm-up", str(WARM_UP)]
    options += ["--rounds", str(ROUNDS), "--tries", str(TRIES), "--out", str(request.out)]
    collectives.main(options)
    for n in world_sizes:
        findings.logs[n] = request.out / f"{request.backend}_{request.device}_{n}ranks.log"


def _measure_ddp(request: ProbeRequest, name: str, steps: int, findings: Findings) -> None:
    out = request.out / "ddp" / f"{name}.yaml"
    microbatch = _of_ddp(request, name, findings)
    options = ["--precision", request.precisions[0], "--backend", request.backend]
    options += ["--world-sizes", _comma(request.world_sizes), "--microbatch", str(microbatch)]
    options += ["--bucket-caps", _comma(BUCKET_CAPS), "--warm-up", str(WARM_UP)]
    options += ["--steps", str(steps), "--rounds", str(ROUNDS), "--tries", str(TRIES)]
    ddp.main([*_model(request, name), *options, "--out", str(out)])
    findings.ddp[name] = DDPRecord.read(out)


def _of_ddp(request: ProbeRequest, name: str, findings: Findings) -> int:
    """Return the largest micro-batch that fits beside replicas of other kinds of steps.

    Each kind of steps has a replica with its optimizer's state, and those of DDP have buckets.
    """
    record = findings.layers.get(name)
    if record is None:
        return request.microbatches[name][0]
    room = FULL * parse(record.device.memory, "data size")
    steps = record.fitting(name, request.precisions[0])
    fitting = [step.microbatch for step in steps if _needed(step.memory) <= room]
    if not fitting:
        raise ProbeError(
            f"no micro-batch leaves room for {NUM_REPLICAS} replicas in memory; run "
            "simdp.probes.ddp with fewer --bucket-caps."
        )
    return max(fitting)


def _needed(memory: StepMemory | None) -> float:
    """Return the memory of a step of DDP beside other replicas [bytes]; 0 if it is unknown."""
    if memory is None:
        return 0.0
    rest, most = (parse(text, "data size") for text in (memory.at_rest, memory.allocated))
    return most + (NUM_REPLICAS - 1) * (rest + rest / 2)  # buckets are no larger than the weights


# Run ---------------------------------------------------------------------------------------------


def affordable_steps(request: ProbeRequest, measured: Sequence[ProbePart]) -> int:
    """Return the timed steps of every measurement, fewer if the budget is too small.

    Raises
    ------
    ProbeError
        If it is too small for the fewest.
    """
    if request.minutes is None:
        return request.steps
    fixed = sum(part.fixed for part in measured)
    per_step = sum(part.per_step for part in measured)
    steps = int((60 * request.minutes - fixed) / per_step) if per_step else request.steps
    if steps < FEWEST:
        least = (fixed + FEWEST * per_step) / 60
        raise ProbeError(
            f"--minutes: {request.minutes:g} is less than the {least:.1f} that the fewest steps "
            f"take; write {least + 0.1:.1f}, or fewer --models, --microbatch or --precision."
        )
    return min(steps, request.steps)


class PartProgress(NamedTuple):
    """Functions that are called during the parts."""

    move: Callable[[float], None]  # with the seconds of the estimate that are done
    finish: Callable[[str, float, str | None], None]  # a part's title, seconds, and its failure


def run_parts(measured: Sequence[ProbePart], steps: int, progress: PartProgress) -> Findings:
    """Run all parts; those that fail leave a line in the findings."""
    findings, before = Findings(), 0.0
    for part in measured:
        begin = time.perf_counter()
        reason = _run_part(part, steps, findings, before, progress)
        before += part.seconds(steps)
        progress.move(before)
        progress.finish(part.title, time.perf_counter() - begin, reason)
    return findings


def _run_part(
    part: ProbePart, steps: int, findings: Findings, before: float, progress: PartProgress
) -> str | None:
    """Run a part, ``before`` seconds after the estimated start; return the reason of a failure."""
    lines = count(1)

    def show(line: str) -> None:
        done = min(1.0, next(lines) / part.num_lines)
        progress.move(before + done * part.seconds(steps))

    try:
        with printed_lines(show):
            part.run(steps, findings)
    except (ProbeError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        findings.failures.append(Failure(part.title, reason))
        return reason
    return None
