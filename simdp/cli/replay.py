"""``replay``: traces of real steps in, a scenario and its profile out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import show, write_text
from simdp.cli.completion import DEVICES, MACHINES
from simdp.errors import ScenarioError

if TYPE_CHECKING:
    from simdp.studies.replay.scenario import Replayed


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE",
            help="Kineto's or our own: files, a folder with one per rank, or a .tar.gz.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The scenario; its profile is written next to it, as .csv.")
    ] = Path("scenario.yaml"),
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.yaml",
            help="See `list machines` [links fitted to the transfers of the traces].",
            autocompletion=MACHINES,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device of the traces: see `list devices` [read from them].",
            autocompletion=DEVICES,
        ),
    ] = None,
    microbatch: Annotated[
        int, typer.Option(min=1, help="Samples of a micro-step, which traces do not contain.")
    ] = 1,
    gradients: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Size of all gradients, such as '102 MB', for traces without collectives.",
        ),
    ] = None,
) -> int:
    """Write a scenario from profiler traces: the same step, for any number of ranks."""
    from simdp.files import check_outputs, whole_files
    from simdp.studies.replay.scenario import read_job, replay_of, size_of

    if out.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"--out {out}: is no YAML file; write for example scenario.yaml.")
    check_outputs(out)
    replayed_job = replay_of(
        read_job(traces),
        machine=machine,
        device=device,
        microbatch=microbatch,
        gradients=None if gradients is None else size_of(gradients),
        name=out.stem,
    )
    replayed = float(replayed_job.simulate().metrics.step_time_s)
    command = " ".join(["python -m simdp replay", *(path.name for path in traces)])
    with whole_files(out.parent) as add:
        add(out.name, lambda stream: write_text(stream, replayed_job.text(command)))
        add(replayed_job.profile_name, lambda stream: write_text(stream, replayed_job.profile))
    _show(replayed_job, replayed, out)
    return 0


def _show(job: Replayed, replayed: float, out: Path) -> None:
    """Print the scenario found and the parts that cannot be replayed."""
    from simdp.reports.figures import nbytes, seconds

    off = replayed / job.step_time_s - 1
    show(f"traces:    {job.num_traces} of {job.num_ranks} ranks, {job.num_steps} steps")
    show(f"step:      {seconds(job.step_time_s)}; replayed {seconds(replayed)}, {off:+.2%}")
    show(f"strategy:  {job.scenario['strategy']['kind']}, gradients of {nbytes(job.nbytes)}")
    for line in job.remarks:
        show(f"  - {line}")
    show(f"scenario:  {out}, and {job.profile_name} beside it; predict with")
    show(f"  python -m simdp run {out} --set cluster.world_size=64")
