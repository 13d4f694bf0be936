"""Measures collectives.

Starts its ranks itself, or runs under torchrun. Writes a log per number of ranks in the form of
nccl-tests, which ``calibrate nccl-tests`` and ``collectives.cost: table`` read.
"""

from __future__ import annotations

import platform
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from simdp.files import check_outputs
from simdp.probes import arguments
from simdp.probes.arguments import ProbeError, progress, require_torch, run
from simdp.probes.figures import CollectiveTimes, median
from simdp.probes.record import write_text
from simdp.results import collective as bandwidth

PERF = {
    "all_gather": "all_gather_perf",
    "all_reduce": "all_reduce_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "reduce_scatter": "reduce_scatter_perf",
}
"""The corresponding programs of nccl-tests."""

_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")
_WIDTH = 12


def table(
    collective: str, world_size: int, seconds: Mapping[int, float], ranks: list[str], about: str
) -> str:
    """Format one table, with times by size of the whole buffer [bytes], [s].

    ``ranks`` are host and device of each rank, ``about`` the name of the probe.
    """
    lines = [f"# {PERF[collective]}: {about}", f"# nranks: {world_size}", "# Using devices"]
    lines += [f"#  Rank {r:2d} on {rank} device {rank}" for r, rank in enumerate(ranks)]
    lines += [_line(_COLUMNS, "#"), _line(_UNITS, "#")]
    factor = bandwidth.bus_bandwidth_factor(collective, world_size)
    assert factor is not None, "a collective of PERF has a bandwidth"
    added, root = bandwidth.redop(collective), str(bandwidth.shown_root(collective, 0))
    for nbytes, time in sorted(seconds.items()):
        count = bandwidth.count(collective, nbytes, world_size, "float")
        algbw = nbytes / time / 1e9
        cells = (str(nbytes), str(count), "float", added, root, f"{time * 1e6:.2f}")
        lines.append(_line((*cells, f"{algbw:.3f}", f"{algbw * factor:.3f}"), " "))
    return "".join(f"{line}\n" for line in lines)


def _line(cells: tuple[str, ...], lead: str) -> str:
    return lead + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


# Collectives --------------------------------------------------------------------------------------

SIZES = [2**k for k in range(10, 28)]
"""1 KiB to 128 MiB."""


def parser() -> arguments.Parser:
    """Return the probe's arguments."""
    options = arguments.Parser(prog="simdp.probes.collectives", description=__doc__)
    arguments.add_ranks(options)
    options.set_defaults(world_sizes=[2])
    known = arguments.one_of("collective", list(PERF))
    options.add_argument("--collectives", type=arguments.listed(known), default=["all_reduce"])
    options.add_argument(
        "--sizes", type=arguments.listed(arguments.size), default=SIZES, help="64 KiB,25 MiB"
    )
    options.add_argument("--warm-up", type=arguments.positive, default=3)
    options.add_argument("--calls", type=arguments.positive, default=20, help="timed, per round")
    arguments.add_quiet(options)
    options.add_argument("--rounds", type=arguments.positive, default=3)
    options.add_argument("--out", type=Path, default=Path(), help="folder of the logs")
    return options


def main(argv: Sequence[str]) -> None:
    """Run the measurement.

    Raises
    ------
    ProbeError
        If arguments are incompatible, torch is missing, or a rank fails.
    """
    args = parser().parse_args(argv)
    check_outputs(args.out / "ranks.log")
    arguments.check_device(args.device, args.backend, args.ranks_per_device, ())
    if 1 in args.world_sizes:
        raise ProbeError("--world-sizes: 1 rank has no communication; write 2 or more.")
    require_torch()
    import torch

    about = f"simdp.probes.collectives, {args.backend} on {args.device}, torch {torch.__version__}"
    for world_size, collectives in (_measure(args) or {}).items():
        ranks = [f"{platform.node()} {args.device}"] * world_size
        tables = []
        for collective, by_size in collectives.items():
            medians = {nbytes: median(times) for nbytes, times in by_size.items()}
            tables.append(table(collective, world_size, medians, ranks, about))
        path = args.out / f"{args.backend}_{args.device}_{world_size}ranks.log"
        write_text(path, "\n".join(tables))
        progress(f"log: {path}")


def _measure(args: Namespace) -> CollectiveTimes | None:
    from simdp.probes.collective_runs import CollectiveProbe, measure
    from simdp.probes.group import run_probe

    options = {"collectives": args.collectives, "sizes": sorted(args.sizes), "calls": args.calls}
    return run_probe(measure, CollectiveProbe, args, **options)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
