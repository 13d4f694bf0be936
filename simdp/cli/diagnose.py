"""``diagnose``: why a job is slow or stops, from its traces and logs, or from two figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simdp.cli.common import parsed_model, show, write_text
from simdp.cli.completion import DEVICES, MODELS, PRECISIONS, STRATEGIES, clusters
from simdp.errors import ScenarioError

if TYPE_CHECKING:
    from simdp.results.diagnosis import Diagnosis


Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|FOLDER|- ...",
        help="Traces of torch.profiler or of simdp (.json, .json.gz), a folder or .tar.gz "
        "with one per rank, dumps of NCCL's flight recorder, JSON of DDP's logging data, and text: "
        "NCCL watchdog, NCCL_DEBUG=INFO, nccl-tests, nvidia-smi topo -m, out-of-memory, tqdm; - "
        "is standard input. Without any: --step, --comm and --gpus.",
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
Step = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="No trace: step time, as 320ms; or of two numbers of GPUs, as 320ms@8,510ms@16.",
    ),
]
SequenceLength = Annotated[
    int | None, typer.Option(min=1, help="No trace: tokens of a sample [the model's].")
]
NodeSize = Annotated[
    int | None, typer.Option(min=1, max=2**20, help="No trace: GPUs of a node [the machine's].")
]
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
        help="A name of `list models`, a config.json, or a mapping as in YAML: of the job "
        "without a trace, or of the tensors whose sizes are in a log.",
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
GradAccum = Annotated[int | None, typer.Option(min=1, help="No trace: micro-steps of a step [1].")]
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
    paths: Files = None,
    machine: MachineName = None,
    step: Step = None,
    comm: Comm = None,
    gpus: Gpus = None,
    device: DeviceName = None,
    model: ModelName = None,
    parameters: NumParameters = None,
    strategy: StrategyName = None,
    microbatch: Microbatch = None,
    grad_accum: GradAccum = None,
    sequence_length: SequenceLength = None,
    node_size: NodeSize = None,
    precision: PrecisionName = None,
    out: Out = None,
    html: Html = None,
    no_remedies: NoRemedies = False,
    as_json: AsJson = False,
) -> int:
    """Diagnose why a real job is slow or stops, from traces and logs, and list remedies."""
    from simdp.files import check_outputs, write_whole

    check_outputs(out, html)
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
        "grad-accum": grad_accum,
        "sequence-length": sequence_length,
        "node-size": node_size,
        "precision": precision,
    }
    diagnosis, title, command = _found(paths or [], named, options, not no_remedies)
    if out is not None:
        write_whole(out, lambda stream: write_text(stream, diagnosis.to_json()))
    if html is not None:
        from simdp.reports import page

        write_whole(
            html, lambda stream: page.write(diagnosis, stream, command=command, title=title)
        )
    if as_json:
        sys.stdout.write(diagnosis.to_json())
    else:
        from simdp.reports import diagnosis_table

        show(diagnosis_table.page(diagnosis, title))
    return 0


def _found(
    paths: list[Path], machine: str | None, options: dict[str, Any], remedies: bool
) -> tuple[Diagnosis, str, list[str]]:
    """The diagnosis of files or of measured values; its title and command line."""
    from simdp.files import parse_yaml

    given = {name: value for name, value in options.items() if value is not None}
    of_machine = ["--machine", machine] if machine else []
    if paths:
        model = given.pop("model", None)
        if given:
            option = f"--{next(iter(given))}"
            why = f"contradict each other, as {option} is for a job without a trace"
            raise ScenarioError(f"{paths[0]}, {option}: {why}; leave one of them out.")
        raw = None if model is None else parsed_model(model, "--model")
        diagnosis = _of_files(paths, machine, remedies, raw)
        names = ["standard input" if str(path) == "-" else path.name for path in paths]
        title = names[0] if len(names) == 1 else f"{len(names)} files"
        command = ["diagnose", *map(str, paths), *(["--model", model] if model else [])]
        return diagnosis, title, [*command, *of_machine]
    if not given:
        raise ScenarioError(
            "FILE, --step: neither given; give a trace or a log, or, without one, for example "
            "--step 320ms --comm 40% --gpus 8 --device a100-sxm4-80gb."
        )
    from simdp.studies.diagnose.reported import diagnose_reported, reported_job

    command = ["diagnose"]
    for name, value in given.items():
        command += [f"--{name}", str(value)]
    for name in ("model", "strategy", "precision"):
        if name in given:
            parse = parsed_model if name == "model" else parse_yaml
            given[name] = parse(given[name], f"--{name}")
    job = reported_job({**given, "machine": machine})
    parameters = options["parameters"]
    what = options["model"] or (f"{parameters} parameters" if parameters else "a job")
    title = f"{what} on {job.machine or job.nodes.title}"
    return diagnose_reported(job, remedies), title, [*command, *of_machine]


STANDARD_INPUT = "standard input"


def _of_files(paths: list[Path], machine: str | None, remedies: bool, model: Any) -> Diagnosis:
    """Diagnose files, of which ``-`` is read from standard input."""
    from simdp.studies import diagnose as study

    if paths.count(Path("-")) > 1:
        raise ScenarioError("-: given twice; standard input can be read once.")
    with TemporaryDirectory() as folder:
        piped = Path(folder) / STANDARD_INPUT
        if Path("-") in paths:
            with piped.open("wb") as stream:
                copyfileobj(sys.stdin.buffer, stream)
        files = [piped if str(path) == "-" else path for path in paths]
        try:
            diagnosis = study.diagnose(files, machine=machine, remedies=remedies, model=model)
        except ScenarioError as error:
            named = [line.replace(str(piped), STANDARD_INPUT) for line in error.problems]
            raise ScenarioError(named) from None
        named = [line.replace(str(piped), STANDARD_INPUT) for line in diagnosis.remarks]
        return replace(diagnosis, remarks=tuple(named))
