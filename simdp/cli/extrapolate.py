"""``extrapolate``: one recorded step to any number of GPUs, machines and strategies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from simdp.cli.common import (
    GoOn,
    NoPlots,
    Overrides,
    Scheduler,
    Shared,
    StorePath,
    Workers,
    add_page,
    check_folder,
    earlier_files,
    overrides_of,
    progress_bar,
    show,
    write_text,
)
from simdp.cli.completion import DEVICES, MACHINES, STRATEGIES
from simdp.errors import ScenarioError

if TYPE_CHECKING:
    from simdp.studies.extrapolate import Extrapolated, ExtrapolationRequest, SourceRecording

SCRIPT, SCENARIO = (".py",), (".yaml", ".yml")
"""Endings of sources; all others are traces."""


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT.py|TRACE|SCENARIO",
        help="A torch script and its arguments; traces or their folder; or a scenario.",
    ),
]
Gpus = Annotated[
    str, typer.Option(metavar="8:512", help="Numbers of GPUs: by doubling, or as 8,16,32.")
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="MACHINE,...",
        help="See `list machines` [the recording's, or the usual one of its device].",
        autocompletion=MACHINES,
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND,...", help="As ddp,fsdp [the recorded one].", autocompletion=STRATEGIES
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="Device of the recording [read from it].", autocompletion=DEVICES),
]
MachineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE.yaml", help="Machine of the traces.", autocompletion=MACHINES),
]
Microbatch = Annotated[
    int | None, typer.Option(min=1, help="Samples of a micro-step, which traces lack [1].")
]
Gradients = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Size of all gradients, for traces without them."),
]
StepTime = Annotated[
    str | None,
    typer.Option(
        metavar='"93 ms"', help="Measured step of a script or scenario on one GPU [simulated]."
    ),
]


class SourceOptions(NamedTuple):
    """Options of what is extrapolated."""

    device: str | None
    machine: str | None
    microbatch: int | None
    gradients: str | None
    step_time: str | None
    settings: list[str] | None


def extrapolate(
    sources: Sources,
    gpus: Gpus,
    on: On = None,
    strategy: StrategyOption = None,
    device: Device = None,
    machine: MachineOption = None,
    microbatch: Microbatch = None,
    gradients: Gradients = None,
    step_time: StepTime = None,
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/NAME].")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print extrapolation.json, only.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    no_plots: NoPlots = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    go_on: GoOn = False,
    store: StorePath = None,
) -> int:
    """Predict a recorded step of one GPU on any number of them: time, memory, and what limits."""
    from simdp.studies.executor import executor_for
    from simdp.studies.extrapolate import extrapolate as study

    request = _request(gpus, on, strategy)
    folder = out or Path("runs") / f"{Path(sources[0]).stem}-extrapolate"
    check_folder(folder, "extrapolation.json", *map(Path, sources))
    shared = Shared(workers, scheduler, go_on, store)
    given = SourceOptions(device, machine, microbatch, gradients, step_time, settings)
    with (
        _recording(sources, request.machines, given) as recording,
        shared.store(out, quiet) as kept,
        progress_bar("extrapolate", quiet) as progress,
        executor_for(workers or 1, scheduler) as executor,
    ):
        made = study(recording, request, executor=executor, store=kept, progress=progress)
        _write(made, recording, folder, None if no_plots else _command(sources, gpus, on, strategy))
    if as_json:
        sys.stdout.write(made.found.to_json())
    elif not quiet:
        from simdp.reports import sweep_table

        show(sweep_table.extrapolation_table(made.found))
        show(f"files in {folder}: a scenario of each machine")
    return 0


def _request(gpus: str, on: str | None, strategy: str | None) -> ExtrapolationRequest:
    """Parse the options that choose points."""
    from simdp.studies.extrapolate import (
        ExtrapolationRequest,
        parse_gpus,
        parse_machines,
        parse_strategies,
    )

    return ExtrapolationRequest(
        parse_gpus(gpus),
        [] if on is None else parse_machines(on),
        [] if strategy is None else parse_strategies(strategy),
    )


def _command(sources: list[str], gpus: str, on: str | None, strategy: str | None) -> list[str]:
    """The command line, reduced to the points."""
    words = ["extrapolate", *sources, "--gpus", gpus]
    for option, value in {"--on": on, "--strategy": strategy}.items():
        words += [] if value is None else [option, value]
    return words


@contextmanager
def _recording(
    sources: list[str], machines: Sequence[str], given: SourceOptions
) -> Iterator[SourceRecording]:
    """Make the recording of a script, a scenario or traces, in a temporary folder."""
    from simdp.scenario.shipped import names
    from simdp.studies.extrapolate import (
        parse_step_time,
        recording_of_scenario,
        recording_of_traces,
    )
    from simdp.studies.replay.scenario import size_of

    first = Path(sources[0])
    is_traces = first.suffix not in SCRIPT + SCENARIO
    is_traces = is_traces and (first.exists() or str(first) not in names())
    _refuse_unsuited(sources, is_traces, given)
    with TemporaryDirectory() as folder:
        if is_traces:
            yield recording_of_traces(
                [Path(path) for path in sources],
                Path(folder),
                machine=given.machine,
                device=given.device,
                microbatch=given.microbatch or 1,
                gradients=None if given.gradients is None else size_of(given.gradients),
            )
            return
        time = given.step_time
        several: dict[str, Any] = {
            "step_time": None if time is None else parse_step_time(time),
            "device": given.device,
        }
        if first.suffix in SCRIPT:
            from simdp.cli.torchrun import record_script

            file = Path(folder) / "recording.yaml"
            record_script(sources[0], sources[1:], file, _cluster(machines, given.device))
            several |= {"kind": "script", "source": sources[0]}
            first = file
        yield recording_of_scenario(first, overrides_of(given.settings), **several)


def _cluster(machines: Sequence[str], device: str | None) -> Path:
    """Machine of the one GPU that a script is recorded on."""
    from simdp.cluster.hardware import device_option
    from simdp.studies.methods import machine_with

    if device is not None:
        return Path(machine_with(device_option(device) or ""))
    if not machines:
        raise ScenarioError("--on: a script names no machine; write for example --on dgx-h100.")
    return Path(machines[0])


def _refuse_unsuited(sources: list[str], is_traces: bool, given: SourceOptions) -> None:
    """Refuse options of another kind of source."""
    of_traces = {
        "--machine": given.machine,
        "--microbatch": given.microbatch,
        "--gradients": given.gradients,
    }
    others = {"--step-time": given.step_time, "--set": given.settings}
    what = "traces" if is_traces else "a script or scenario"
    of = "scripts and scenarios" if is_traces else "traces"
    lines = [
        f"{option}: is of {of}, and {sources[0]} is {what}; leave it out."
        for option, value in (others if is_traces else of_traces).items()
        if value
    ]
    if Path(sources[0]).suffix in SCENARIO and len(sources) > 1:
        lines.append(f"{sources[1]}: one scenario is extrapolated at a time; leave the others out.")
    if lines:
        raise ScenarioError(lines)


def _write(
    made: Extrapolated, recording: SourceRecording, folder: Path, command: list[str] | None
) -> None:
    """Write the document, the page, and a scenario of each machine with the files it names."""
    from simdp.files import format_yaml, whole_files
    from simdp.scenario.overrides import move_paths, named_files

    base, inside = recording.base.resolve(), recording.step.kind != "scenario"
    with whole_files(folder, earlier_files(folder)) as add:
        add("extrapolation.json", lambda stream: write_text(stream, made.found.to_json()))
        if command is not None:
            add_page(add, made.study, command=command)
        for name, raw in made.scenarios.items():
            moved = raw if inside else move_paths(raw, base, folder.resolve())
            add(name, partial(write_text, text=format_yaml(moved)))
        if inside:  # files of a temporary folder
            for path in dict.fromkeys(named_files(next(iter(made.scenarios.values())), base)):
                add(path.name, methodcaller("write", path.read_bytes()))
