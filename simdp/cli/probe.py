"""``probe``: measures this machine with real torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import INVALID, progress_bar, warn
from simdp.probes.arguments import BACKENDS, DEVICES, OPTIMIZERS, PRECISIONS
from simdp.probes.zoo import MODELS

if TYPE_CHECKING:
    from simdp.probes.findings import Findings
    from simdp.probes.plan import ProbePart
    from simdp.probes.report import SimulatedStep

DeviceName = Annotated[
    str | None,
    typer.Option(metavar="|".join(DEVICES), help="What to measure [cuda where torch finds a GPU]."),
]
ModelNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help=f"Some of {', '.join(MODELS)} [on a CPU mlp, transformer; on a GPU mlp, resnet50, "
        "bert-base, gpt2].",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="MODEL.KEY=VALUE", help="Change a model: gpt2.n_layer=24."),
]
Precisions = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help=f"Some of {', '.join(PRECISIONS)}; DDP runs in the first [on a CPU full; on a GPU "
        "bf16,tf32, or fp16,full before A100].",
    ),
]
Microbatches = Annotated[
    str | None,
    typer.Option(
        metavar="N,...", help="Samples per rank and step, of all models [two or three of each]."
    ),
]
OptimizerName = Annotated[
    str, typer.Option(metavar="|".join(OPTIMIZERS), help="Of all models [adamw].")
]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        metavar="N,...", help="Numbers of ranks, on GPUs at most their number [1, 2, and all GPUs]."
    ),
]
BackendName = Annotated[
    str | None,
    typer.Option(metavar="|".join(BACKENDS), help="Of collectives [nccl on GPUs, else gloo]."),
]
NumSteps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Timed steps of each measurement [20; on a CPU 10]."),
]
Minutes = Annotated[
    float | None,
    typer.Option(metavar="N", help="Instead: as many steps, 3 or more, as fit into N minutes."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for files.")]


def probe(
    device: DeviceName = None,
    models: ModelNames = None,
    changes: Changes = None,
    precision: Precisions = None,
    microbatch: Microbatches = None,
    optimizer: OptimizerName = "adamw",
    world_sizes: WorldSizes = None,
    backend: BackendName = None,
    steps: NumSteps = None,
    minutes: Minutes = None,
    out: Out = Path("runs/probe"),
) -> int:
    """Measure this machine with real torch: a machine file, a scenario and a report.

    Prints its parts and an estimate of the minutes first, which depend on the machine: a few
    minutes on two CPU cores or on one GPU. Needs simdp[torch].
    """
    from simdp.files import check_outputs
    from simdp.probes import plan

    check_outputs(out / "report.txt")
    options = plan.ProbeOptions(
        *(device, models, changes or (), precision, microbatch, optimizer),
        *(world_sizes, backend, steps, minutes, out),
    )
    request = plan.read_options(options)
    _print("two steps of each model, for an estimate ...")
    parts = plan.parts(request, plan.quick_steps(request))
    num_steps = plan.affordable_steps(request, parts)
    _print_plan(parts, num_steps, request.device)
    findings, seconds = _run(parts, num_steps)
    return _finish(findings, seconds, out)


def _print(line: str) -> None:
    """Print a line at once, since the next one takes long."""
    print(line, flush=True)


def _print_plan(parts: list[ProbePart], steps: int, device: str) -> None:
    """Print what is measured, and the estimate."""
    times = [part.seconds(steps) for part in parts]
    for number, (part, seconds) in enumerate(zip(parts, times, strict=True), 1):
        _print(f"{number:3d}. {part.title}: about {seconds:.0f} s")
    _print(
        f"about {max(1, round(sum(times) / 60))} min in all on {device}, with {steps} timed steps "
        "of each kind; longer if other programs use the machine"
    )


def _run(parts: list[ProbePart], steps: int) -> tuple[Findings, float]:
    """Run the parts, with a progress bar on a terminal, else with a line after each part."""
    from simdp.probes import plan

    total, taken = round(sum(part.seconds(steps) for part in parts)), list[float]()
    with progress_bar("seconds of the estimate", False) as bar:

        def move(done: float) -> None:
            if bar is not None:
                bar(round(done), total)

        def finish(title: str, seconds: float, reason: str | None) -> None:
            taken.append(seconds)
            if bar is None:
                end = f"{seconds:.0f} s" if reason is None else f"not measured: {reason}"
                _print(f"{title}: {end}")

        findings = plan.run_parts(parts, steps, plan.PartProgress(move, finish))
    return findings, sum(taken)


def _finish(findings: Findings, seconds: float, out: Path) -> int:
    """Write and print what was found; the exit status is that of wrong input if a part failed."""
    from simdp.probes.findings import write_files
    from simdp.probes.record import write_text
    from simdp.probes.report import report

    if findings.records:
        paths = write_files(findings, out)
        text = report(findings, _predictions(paths), seconds)
        write_text(out / "report.txt", text)
        sys.stdout.write(f"\n{text}\n")
        following = f"; next: python -m simdp validate {paths[0]}" if paths else ""
        print(f"files in {out}{following}")
    for part, reason in findings.failures:
        warn(f"{part}: {reason}")
    return INVALID if findings.failures else 0


def _predictions(paths: list[Path]) -> list[SimulatedStep]:
    """Simulate the measured steps of the scenarios; wrong points are messages."""
    from simdp.probes.report import SimulatedStep
    from simdp.studies.validate import validate

    if not paths:
        return []
    validation = validate(paths, workers=1, intervals="none")
    for failure in validation.not_compared:
        warn(failure.line)
    return [
        SimulatedStep(
            point.scenario,
            ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point.set.items()),
            point.measured,
            point.simulated,
            point.is_predicted,
        )
        for point in validation.points
    ]
