"""``exec``: a rank program on virtual ranks."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simdp.cli.common import check_folder, earlier_files, show, write_text
from simdp.cli.completion import clusters
from simdp.errors import ScenarioError

if TYPE_CHECKING:
    from simdp.distributed.launch import ProgramResult


def execute(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM.py", help="A rank program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments of the program.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(help="Number of ranks [the cluster's; one node of a machine].")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(help="As torchrun's: nodes [1].")] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option(help="As torchrun's: ranks per node [1].")
    ] = None,
    cluster: Annotated[
        Path,
        typer.Option(help="A scenario, for its cluster, or a machine.", autocompletion=clusters),
    ] = Path("dgx-a100"),
    seed: Annotated[int, typer.Option(help="Of the stragglers' random draws.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for files [runs/PROGRAM].")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print times as JSON; prints go to standard error.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the ranks' output, only.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw no pictures.")] = False,
) -> int:
    """Run a program of simdp.distributed on every rank of a virtual cluster, as torchrun does."""
    from simdp.distributed.launch import find, run_script
    from simdp.scenario import shipped

    program = shipped.find(program, shipped.PROGRAM)
    ranks, per_node = _sizes(world_size, nnodes, nproc_per_node)
    where = find(cluster, ranks, per_node)
    folder = out or Path("runs") / program.stem
    check_folder(folder, "trace.json")
    if as_json:
        with redirect_stdout(sys.stderr):
            result = run_script(program, where, arguments or [], seed)
    else:
        result = run_script(program, where, arguments or [], seed)
    write_program(result, folder, not no_plots)
    if as_json:
        summary = {
            "program": str(program),
            "cluster": where.name,
            "world_size": result.world_size,
            "simulated_s": result.simulated_s,
            "rank_s": result.clocks.tolist(),
        }
        sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    elif not quiet:
        from simdp.reports.figures import seconds

        count = f"{result.world_size} rank{'s' if result.world_size > 1 else ''}"
        took = seconds(result.simulated_s) if result.simulated_s else "0 s"
        show(f"{count} on {where.name}: {took} simulated; files in {folder}")
    return 0


def _sizes(
    world_size: int | None, nnodes: int | None, nproc_per_node: int | None
) -> tuple[int | None, int | None]:
    """Ranks, and ranks per node, where these are given."""
    for option, value in (
        ("--world-size", world_size),
        ("--nnodes", nnodes),
        ("--nproc-per-node", nproc_per_node),
    ):
        if value is not None and value < 1:
            raise ScenarioError(f"{option} {value}: must be >= 1.")
    if nnodes is None and nproc_per_node is None:
        return world_size, None
    per_node = nproc_per_node or 1
    ranks = (nnodes or 1) * per_node
    if world_size not in (None, ranks):
        raise ScenarioError(
            f"--world-size {world_size}: is not --nnodes x --nproc-per-node = {ranks}; leave "
            "it out."
        )
    return ranks, per_node


def write_program(result: ProgramResult, folder: Path, plots: bool) -> None:
    """Write trace.json, and the picture if anything took time."""
    from simdp.files import whole_files
    from simdp.reports import chrome_trace

    with whole_files(folder, earlier_files(folder)) as add:
        text = chrome_trace.write(result.study().points[0])
        add("trace.json", lambda stream: write_text(stream, text))
        if plots and len(result.trace):
            from simdp.reports.plots import render

            add("timeline.png", partial(render, result.study(one_lane=True), "timeline"))
