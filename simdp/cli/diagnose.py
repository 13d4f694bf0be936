"""``diagnose``: why a job's step takes as long as it does, from its traces, or from two figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simdp.cli.common import add_page, put, say
from simdp.cli.completion import DEVICES, MODELS, PRECISIONS, STRATEGIES, clusters

if TYPE_CHECKING:
    from simdp.results.diagnosis import Diagnosis


Traces = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE|FOLDER",
        help="A trace of torch.profiler or of simdp (.json, .json.gz), a folder or .tar.gz "
        "with one per rank, dumps of NCCL's flight recorder, or JSON of DDP's logging data. "
        "Without one: --step, --comm and --gpus.",
    ),
]
MachineName = Annotated[
    Path | None,
    typer.Option(
        metavar="NAME|FILE.yaml",
        help="Reference for collectives: see `list machines`, or a scenario [the one that "
        "traces of simdp name; else one with the same device].",
        autocompletion=clusters,
    ),
]
Step = Annotated[str | None, typer.Option(metavar="TIME", help="No trace: step time, as 320ms.")]
Comm = Annotated[
    str | None,
    typer.Option(metavar="SHARE|TIME", help="No trace: exposed communication, as 40% or 128ms."),
]
Gpus = Annotated[int | None, typer.Option(min=1, help="No trace: number of ranks.")]
DeviceName = Annotated[
    str | None,
    typer.Option(help="No trace: see `list devices`.", autocompletion=DEVICES),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="No trace: a name of `list models`, or a mapping as in YAML.",
        autocompletion=MODELS,
    ),
]
NumParameters = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="No trace: in place of a model, as 1e9 or 350M."),
]
StrategyName = Annotated[
    str | None,
    typer.Option(help="No trace: see `list strategies` [ddp].", autocompletion=STRATEGIES),
]
Microbatch = Annotated[
    int | None,
    typer.Option(min=1, help="No trace: samples per rank and micro-step [fitted to the compute]."),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        help="No trace: full, amp, mixed [amp, where devices have it].",
        autocompletion=PRECISIONS,
    ),
]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Also write the JSON to this file.")
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write an HTML page of the diagnosis there."),
]
NoRemedies = Annotated[
    bool, typer.Option("--no-remedies", help="Simulate no remedies, which takes seconds.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, only.")]


def diagnose(
    path: Traces = None,
    machine: MachineName = None,
    step: Step = None,
    comm: Comm = None,
    gpus: Gpus = None,
    device: DeviceName = None,
    model: ModelName = None,
    parameters: NumParameters = None,
    strategy: StrategyName = None,
    microbatch: Microbatch = None,
    precision: PrecisionName = None,
    out: Out = None,
    html: Html = None,
    no_remedies: NoRemedies = False,
    as_json: AsJson = False,
) -> int:
    """Diagnose a real job's step time from its traces, and list remedies."""
    from simdp.files import whole_files

    named = None if machine is None else str(machine)
    options = {
        "step": step,
        "comm": comm,
        "gpus": gpus,
        "device": device,
        "model": model,
        "parameters": parameters,
        "strategy": strategy,
        "microbatch": microbatch,
        "precision": precision,
    }
    found, title, command = _found(path, named, options, not no_remedies)
    if out is not None:
        with whole_files(out.parent) as add:
            add(out.name, lambda stream: put(stream, found.to_json()))
    if html is not None:
        with whole_files(html.parent) as add:
            add_page(add, found, html.name, command=command, title=title)
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        from simdp.reports import diagnosis_table

        say(diagnosis_table.page(found, title))
    return 0


def _found(
    path: Path | None, machine: str | None, options: dict[str, Any], remedies: bool
) -> tuple[Diagnosis, str, list[str]]:
    """The diagnosis of traces or of measured values; its title and command line."""
    from simdp.errors import ScenarioError
    from simdp.files import parse_yaml
    from simdp.studies import diagnose as study

    given = {name: value for name, value in options.items() if value is not None}
    of_machine = ["--machine", machine] if machine else []
    if path is not None:
        if given:
            option = f"--{next(iter(given))}"
            why = f"contradict each other, as {option} is for a job without a trace"
            raise ScenarioError([f"{path}, {option}: {why}; leave one of them out."])
        found = study.diagnose(path, machine=machine, remedies=remedies)
        return found, path.name, ["diagnose", str(path), *of_machine]
    if not given:
        raise ScenarioError(
            [
                "TRACE, --step: neither given; give a trace, or, without one, for example "
                "--step 320ms --comm 40% --gpus 8 --device a100-sxm4-80gb."
            ]
        )
    from simdp.studies.diagnose.reported import diagnose_reported, reported_job

    command = ["diagnose"]
    for name, value in given.items():
        command += [f"--{name}", str(value)]
    for name in ("model", "strategy", "precision"):
        if name in given:
            given[name] = parse_yaml(given[name], f"--{name}")
    job = reported_job({**given, "machine": machine})
    parameters = options["parameters"]
    what = options["model"] or (f"{parameters} parameters" if parameters else "a job")
    title = f"{what} on {job.machine}"
    return diagnose_reported(job, remedies), title, [*command, *of_machine]
