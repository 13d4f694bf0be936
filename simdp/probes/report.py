"""The report of `python -m simdp probe`: what was measured, what no profile has, and what is sent.

Plain text. The figures come from the records, and from the comparison with simulated steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill
from typing import NamedTuple

from simdp.probes.arguments import per_model
from simdp.probes.figures import percent
from simdp.probes.findings import MACHINE, MORE, SCENARIO, Findings
from simdp.probes.record import FullStep, LayersStep
from simdp.results.collective import bus_bandwidth_factor, read_nccl_tables
from simdp.units import parse

WIDTH = 80

HOST_BOUND, DEVICE_BOUND = 0.9, 0.7
"""Shares of a step that issuing it takes: from the first on the host is the bound, up to the second
the device."""

SIMILAR = 0.05
"""Share of a step by which layers with hooks may differ from a step without them."""


class SimulatedStep(NamedTuple):
    """A measured step and the simulated one."""

    scenario: str  # its name
    setting: str  # how the point differs from the scenario
    measured: float  # [s]
    simulated: float  # [s]
    is_predicted: bool  # whether nothing was calibrated on it


class ReportedStep(NamedTuple):
    """The parts of a step without DDP [s], and its memory [bytes]; None where there is none."""

    model: str
    """The step."""
    precision: str
    """The step."""
    microbatch: int
    """The step."""
    step: float
    """Medians of the step and its parts."""
    forward: float
    """Medians of the step and its parts."""
    backward: float
    """Medians of the step and its parts."""
    update: float
    """Medians of the step and its parts."""
    layers: float | None
    """Sum of the layers' times in the profile."""
    issue: float | None
    """Of the host, for a step that begins on an idle GPU."""
    allocated: float | None
    """Peak of the allocator."""

    @property
    def hooks(self) -> float:
        """The layers' times over the step without its update; 0 without a profile."""
        return 0.0 if self.layers is None else self.layers + self.update - self.step

    @property
    def peak(self) -> str:
        """The allocator's peak [GB]."""
        return "-" if self.allocated is None else f"{self.allocated / 1e9:.3g}"

    @property
    def bound(self) -> str:
        """``host`` where the device waits for the host, else ``device``, or ``both`` in between."""
        share = 0.0 if self.issue is None else self.issue / self.step
        return "host" if share >= HOST_BOUND else "both" if share > DEVICE_BOUND else "device"


def step_rows(findings: Findings) -> list[ReportedStep]:
    """Return the steps of all models, precisions and micro-batches that fit into memory."""
    return [
        _row(model, precision, step)
        for model, precision, step in _steps(findings)
        if isinstance(step, LayersStep)
    ]


def _steps(findings: Findings) -> Iterator[tuple[str, str, LayersStep | FullStep]]:
    for name, record in findings.layers.items():
        for precision, part in (record.models[name].precisions or {}).items():
            for step in part.steps:
                yield name, precision, step


def _row(model: str, precision: str, step: LayersStep) -> ReportedStep:
    times = step.step_time.p50, step.forward, step.backward, step.update
    whole, forward, backward, update = (parse(text, "time") for text in times)
    layers = None if step.sum_of_layers is None else parse(step.sum_of_layers, "time")
    issue = None if step.host is None else parse(step.host.step, "time")
    memory = None if step.memory is None else parse(step.memory.allocated, "data size")
    row = model, precision, step.microbatch, whole, forward, backward, update
    return ReportedStep(*row, layers, issue, memory)


# Report ------------------------------------------------------------------------------------------


def report(findings: Findings, predictions: Sequence[SimulatedStep], seconds: float) -> str:
    """Format the report of some findings, which took ``seconds``."""
    sections = [
        _machine(findings, seconds),
        _of_steps(findings),
        _of_profiles(step_rows(findings)),
        _of_collectives(findings),
        _of_ddp(findings),
        _of_predictions(predictions),
        _not_measured(findings),
        _to_send(findings),
    ]
    return "\n".join("".join(f"{line}\n" for line in section) for section in sections if section)


def _machine(findings: Findings, seconds: float) -> list[str]:
    machine, device = findings.machine, findings.device
    software = {"torch": machine.torch, "cuda": machine.cuda, "nccl": machine.nccl}
    parts = [] if machine.gpus is None else [_count(machine.gpus, "GPU")]
    parts += [_count(machine.cores, "core")]
    parts += [f"{name} {version}" for name, version in software.items() if version is not None]
    rates = {name: parse(rate, "compute rate") / 1e12 for name, rate in device.peak.items()}
    peaks = [f"{rate:.4g} TFLOP/s in {dtype}" for dtype, rate in rates.items()]
    return [
        f"{machine.device_name}: {', '.join(parts)}",
        f"  products         {', '.join(peaks)}",
        f"  memory           {device.memory}, copied at {device.memory_bandwidth}",
        f"  smallest kernel  {device.launch}",
        f"  measured in      {seconds / 60:.1f} minutes",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _of_steps(findings: Findings) -> list[str]:
    """Format the steps without DDP, their bound, and their memory."""
    rows = step_rows(findings)
    if not rows:
        return []
    has_host = any(row.issue is not None for row in rows)
    heads = ["model", "precision", "batch", "step", "forward", "backward", "update"]
    heads += ["issue", "bound", "memory"] * has_host
    cells = [
        [
            *(row.model, row.precision, str(row.microbatch)),
            *map(_ms, (row.step, row.forward, row.backward, row.update)),
            *([_ms(row.issue), row.bound, row.peak] * has_host),
        ]
        for row in rows
    ]
    lines = ["Steps without DDP [ms]" + ", peak of memory [GB]" * has_host]
    lines += _table(heads, cells, 2)
    if has_host:
        count = sum(row.bound == "host" for row in rows)
        lines += _wrapped(
            f"issue: time of the host for a step that begins on an idle GPU. Where it is "
            f"{percent(HOST_BOUND)} of the step or more, in {count} of {len(rows)} steps here, the "
            "GPU waits for the host: the bound is the host, and a larger micro-batch costs little."
        )
    else:
        lines += _wrapped("A CPU computes in the calls of torch: no host bounds these steps.")
    full = [
        f"{name}, {precision}, {step.microbatch}"
        for name, precision, step in _steps(findings)
        if isinstance(step, FullStep)
    ]
    return lines + (_wrapped(f"did not fit into memory: {'; '.join(full)}") if full else [])


def _of_profiles(rows: Sequence[ReportedStep]) -> list[str]:
    """Format what of each step is in no layer's profile, and what a profile has too much."""
    rows = [row for row in rows if row.layers is not None]
    if not rows:
        return []
    cells = [
        [
            *(row.model, row.precision, str(row.microbatch)),
            *map(_ms, (row.step, row.layers)),
            _share(row.step - (row.layers or 0.0), row.step),
            _share(row.update, row.step),
            _share(-row.hooks, row.step),
        ]
        for row in rows
    ]
    heads = ["model", "precision", "batch", "step", "layers", "not in it", "update", "other"]
    lines = ["Steps and the profiles of their layers [ms]", *_table(heads, cells, 2)]
    lines += _wrapped(
        "layers: the sum of a profile. not in it: the share of the step that is in no layer's "
        "times. It is made up of the optimizer's update, and of what else forward and backward "
        "take: gaps in which the device waits for the host, or, where it is negative, what the "
        "hooks that time the layers cost. The loss counts with the last layer, and modules without "
        "parameters with the layer before them."
    )
    good = [row for row in rows if abs(row.hooks) <= SIMILAR * row.step]
    if len(good) < len(rows):
        names = "; ".join(f"{row.model}, {row.precision}, {row.microbatch}" for row in good)
        lines += _wrapped(
            f"Profiles within {percent(SIMILAR)} of the step without its update: "
            f"{names or 'none'}. Take the others for shares of layers only."
        )
    return lines


def _of_collectives(findings: Findings) -> list[str]:
    """Format the smallest and the largest size of each collective."""
    cells = []
    for n, path in sorted(findings.logs.items()):
        for log in read_nccl_tables(path):
            first, last = log.rows[0], log.rows[-1]
            factor = bus_bandwidth_factor(str(log.collective), n) or 1.0
            busbw = last.nbytes * factor / last.seconds / 1e9
            cells.append(
                [
                    *(str(log.collective), str(n), f"{first.seconds * 1e6:.4g}"),
                    *(f"{last.nbytes / 2**20:.4g}", f"{last.seconds * 1e3:.4g}", f"{busbw:.3g}"),
                ]
            )
    if not cells:
        return []
    heads = ["collective", "ranks", "smallest [us]", "largest [MiB]", "[ms]", "busbw [GB/s]"]
    return ["Collectives", *_table(heads, cells, 1)]


def _of_ddp(findings: Findings) -> list[str]:
    """Format DDP's steps, and how much of a step communication adds."""
    cells = []
    for name, record in findings.ddp.items():
        settings = record.settings
        microbatch = per_model(settings.microbatch, settings.models)[name]
        for run in record.models[name].runs:
            if run.variant in ("baseline", "ddp"):
                exposed = run.exposed_communication
                cells.append(
                    [
                        *(name, run.variant, str(microbatch), str(run.world_size)),
                        run.bucket_cap or "-",
                        _ms(parse(run.step_time.p50, "time")),
                        "-" if exposed is None else exposed.over_skipped.removesuffix(" ms"),
                        run.noise,
                    ]
                )
    if not cells:
        return []
    heads = ["model", "step", "batch", "ranks", "buckets", "[ms]", "exposed [ms]", "noise"]
    lines = ["Steps of DDP, and without it (baseline)", *_table(heads, cells, 2)]
    return lines + _wrapped(
        "exposed: over the same step whose buckets are not sent. noise: how much the medians of "
        "rounds differ; other programs on the machine make it larger."
    )


def _of_predictions(predictions: Sequence[SimulatedStep]) -> list[str]:
    """Format simulated beside measured steps."""
    if not predictions:
        return []
    cells = [
        [
            *(step.scenario, step.setting, "predicted" if step.is_predicted else "calibration"),
            *(_ms(step.measured), _ms(step.simulated)),
            f"{step.simulated / step.measured - 1:+.1%}".replace("%", " %"),
        ]
        for step in predictions
    ]
    heads = ["scenario", "point", "role", "measured", "simulated", "error"]
    errors = [abs(p.simulated / p.measured - 1) for p in predictions if p.is_predicted]
    lines = ["Simulated steps [ms]", *_table(heads, cells, 3)]
    if errors:
        mean = percent(sum(errors) / len(errors))
        return [*lines, f"{mean} off in the mean of {_count(len(errors), 'predicted step')}"]
    return lines + _wrapped("Steps of one rank calibrate; there is none of more ranks to predict.")


def _not_measured(findings: Findings) -> list[str]:
    lines = [line for part, why in findings.failures for line in _wrapped(f"{part}: {why}", "  ")]
    return ["Not measured", *lines] if lines else []


def _to_send(findings: Findings) -> list[str]:
    """Format which files help simdp, and what they hold."""
    scenarios = [SCENARIO, f"{MORE}/"] if len(findings.ddp) > 1 else [SCENARIO] * bool(findings.ddp)
    folders = ["layers/"] * bool(findings.layers) + ["ddp/"] * bool(findings.ddp)
    files = [MACHINE, *scenarios, *folders, *(log.name for log in findings.logs.values())]
    return [
        "What to send back",
        *_wrapped(
            f"This folder: {', '.join(files)} and report.txt, as an archive at an issue of simdp's "
            "tracker. The files hold times, sizes, settings of the models above, and names and "
            "versions of the CPU, the GPU, the system and torch; the logs also the host's name, in "
            "the lines that begin with '#  Rank', which may be replaced. They hold no data, no "
            "weights, no code and no paths. Add what the machine cannot tell of itself: how its "
            "GPUs and nodes are joined (nvidia-smi topo -m), and whether others used it meanwhile."
        ),
    ]


# Tables ------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Align columns: the first ``texts`` to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        aligned = [
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"  {'  '.join(aligned)}".rstrip()

    return [line(heads), *map(line, rows)]


def _wrapped(text: str, indent: str = "") -> list[str]:
    return fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=2 * indent, break_on_hyphens=False
    ).splitlines()


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _share(part: float, whole: float) -> str:
    return f"{round(100 * part / whole)} %"
