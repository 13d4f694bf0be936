"""``replay``: traces of real steps in, a scenario and its profile out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import put, say
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
    found = replay_of(
        read_job(traces),
        machine=machine,
        device=device,
        microbatch=microbatch,
        gradients=None if gradients is None else size_of(gradients),
        name=out.stem,
    )
    replayed = float(found.simulate().metrics.step_time_s)
    command = " ".join(["python -m simdp replay", *(path.name for path in traces)])
    with whole_files(out.parent) as add:
        add(out.name, lambda stream: put(stream, found.text(command)))
        add(found.profile_name, lambda stream: put(stream, found.profile))
    _show(found, replayed, out)
    return 0


def _show(found: Replayed, replayed: float, out: Path) -> None:
    """Print the scenario found and the parts that cannot be replayed."""
    from simdp.reports.figures import nbytes, seconds

    off = replayed / found.step_time_s - 1
    say(f"traces:    {found.num_traces} of {found.num_ranks} ranks, {found.num_steps} steps")
    say(f"step:      {seconds(found.step_time_s)}; replayed {seconds(replayed)}, {off:+.2%}")
    say(f"strategy:  {found.scenario['strategy']['kind']}, gradients of {nbytes(found.nbytes)}")
    for line in found.remarks:
        say(f"  - {line}")
    say(f"scenario:  {out}, and {found.profile_name} beside it; predict with")
    say(f"  python -m simdp run {out} --set cluster.world_size=64")
