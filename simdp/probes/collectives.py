"""Measures collectives.

Starts its ranks itself, or runs under torchrun. Writes a log per number of ranks in the form of
nccl-tests, which ``calibrate nccl-tests`` and ``collectives.cost: table`` read.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from simdp.probes import arguments
from simdp.probes.arguments import ProbeError, RankContext, handover, require_torch, run, say
from simdp.probes.device import clock, median, settle, undisturbed
from simdp.probes.record import write_text
from simdp.results import collective as bandwidth

# Collective runs ----------------------------------------------------------------------------------

ITEMSIZE = 4  # float32

COLD_NBYTES = {"cpu": 2**28, "cuda": 0}
"""Buffers that take turns have so many bytes together. A training step touches weights, gradients
and buckets between two calls, so that a CPU's caches hold no bucket; a GPU's matter little, and
nccl-tests has one buffer."""

MAX_BUFFERS = 64

Call = Callable[[], Any]


class CollectiveProbe(NamedTuple):
    """What is measured.

    Attributes
    ----------
    collectives : list of str
        Keys of `CALLS`.
    world_sizes, sizes : list of int
        Numbers of ranks; bytes of the whole buffer, as nccl-tests counts them.
    warm_up, calls : int
        Calls that are not timed, and that are, in every round.
    rounds : int
        How often all sizes come round.
    max_foreign : float
        Share of the cores that other programs may use; a round that they disturb is repeated.
    tries : int
        How often a round is taken at most.
    collect : callable
        Takes the medians: ``{world_size: {collective: {size: seconds}}}``.
    """

    collectives: list[str]
    world_sizes: list[int]
    sizes: list[int]
    warm_up: int
    calls: int
    rounds: int
    max_foreign: float
    tries: int
    collect: Callable[[dict[str, Any]], None]


def _all_reduce(full: Any, part: Any, group: Any) -> Call:
    return lambda: dist.all_reduce(full, group=group)


def _broadcast(full: Any, part: Any, group: Any) -> Call:
    return lambda: dist.broadcast(full, 0, group=group)


def _reduce(full: Any, part: Any, group: Any) -> Call:
    return lambda: dist.reduce(full, 0, group=group)


def _all_gather(full: Any, part: Any, group: Any) -> Call:
    return lambda: dist.all_gather_into_tensor(full, part, group=group)


def _reduce_scatter(full: Any, part: Any, group: Any) -> Call:
    return lambda: dist.reduce_scatter_tensor(part, full, group=group)


def _all_to_all(full: Any, part: Any, group: Any) -> Call:
    out = torch.empty_like(full)
    return lambda: dist.all_to_all_single(out, full, group=group)


CALLS: dict[str, Callable[[Any, Any, Any], Call]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
}
"""How torch makes each; ``full`` is the whole buffer, ``part`` what one rank has of it."""


def measure(here: RankContext, job: CollectiveProbe) -> None:
    """Time every collective at every size, and hand over all times of every call.

    Calls follow each other as in nccl-tests. All ranks together, the median is robust against what
    else the machine does.
    """
    found: dict[str, Any] = {}
    for n in job.world_sizes:
        group = dist.new_group(list(range(n)))
        for collective in job.collectives:
            times: dict[int, list[float]] = {nbytes: [] for nbytes in job.sizes}
            for _ in range(job.rounds):
                work = partial(_round, here, job, collective, n, group)
                taken, _ = undisturbed(here.gathered, work, job.max_foreign, job.tries)
                for nbytes, seconds in taken.items():
                    times[nbytes] += seconds
            every = here.gathered(times)[:n]
            found.setdefault(str(n), {})[collective] = {
                str(nbytes): [t for times in every for t in times[nbytes]] for nbytes in job.sizes
            }
            if here.rank == 0:
                say(f"{collective}: {n} ranks, {len(job.sizes)} sizes")
    if here.rank == 0:
        job.collect(found)


def _round(
    here: RankContext, job: CollectiveProbe, collective: str, n: int, group: Any
) -> dict[int, list[float]]:
    """Seconds of some calls at every size; nothing on a rank that has no part in them."""
    if here.rank >= n:
        return {}
    return {nbytes: _time(here, job, collective, n, nbytes, group) for nbytes in job.sizes}


def _time(
    here: RankContext, job: CollectiveProbe, collective: str, n: int, nbytes: int, group: Any
) -> list[float]:
    """Seconds of some calls at one size."""
    each = max(nbytes // ITEMSIZE // n, 1)
    num_buffers = max(1, min(COLD_NBYTES[here.device.type] // nbytes, MAX_BUFFERS))
    buffers = [torch.zeros(each * n, device=here.device) for _ in range(num_buffers)]
    calls = cycle([CALLS[collective](full, full[:each].clone(), group) for full in buffers])
    for _ in range(max(job.warm_up, num_buffers)):  # once through all, which maps their memory
        next(calls)()
    settle(here.device)
    dist.barrier(group=group)
    watch = clock(here.device)
    watch.mark()
    for _ in range(job.calls):
        next(calls)()
        watch.mark()
    at = watch.seconds()
    return [b - a for a, b in pairwise(at)]


# Nccl table ---------------------------------------------------------------------------------------

PERF = {
    "all_gather": "all_gather_perf",
    "all_reduce": "all_reduce_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "reduce_scatter": "reduce_scatter_perf",
}
"""The programs of nccl-tests that measure the same."""

_COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw")
_UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)")
_WIDTH = 12


def table(
    collective: str, world_size: int, seconds: Mapping[int, float], ranks: list[str], about: str
) -> str:
    """Write one table.

    Parameters
    ----------
    collective : str
        A key of `PERF`.
    world_size : int
        Number of ranks.
    seconds : mapping of int to float
        Time by size of the whole buffer [bytes], [s].
    ranks : list of str
        What each rank runs on: host and device.
    about : str
        What measured.

    Returns
    -------
    str
        Lines with their ends.
    """
    lines = [f"# {PERF[collective]}: {about}", f"# nranks: {world_size}", "# Using devices"]
    lines += [f"#  Rank {r:2d} on {what} device {what}" for r, what in enumerate(ranks)]
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
    """The probe's arguments."""
    found = arguments.Parser(prog="simdp.probes.collectives", description=__doc__)
    arguments.add_ranks(found)
    found.set_defaults(world_sizes=[2])
    known = arguments.one_of("collective", list(PERF))
    found.add_argument("--collectives", type=arguments.listed(known), default=["all_reduce"])
    found.add_argument(
        "--sizes", type=arguments.listed(arguments.size), default=SIZES, help="64 KiB,25 MiB"
    )
    found.add_argument("--warm-up", type=arguments.positive, default=3)
    found.add_argument("--calls", type=arguments.positive, default=20, help="timed, per round")
    arguments.add_quiet(found)
    found.add_argument("--rounds", type=arguments.positive, default=3)
    found.add_argument("--out", type=Path, default=Path(), help="folder of the logs")
    return found


def main(given: Sequence[str]) -> None:
    """Measure as the arguments say.

    Raises
    ------
    ProbeError
        If arguments do not fit together, torch is missing, or a rank fails.
    """
    args = parser().parse_args(given)
    arguments.check_device(args.device, args.backend, args.ranks_per_device, ())
    if 1 in args.world_sizes:
        raise ProbeError("--world-sizes: 1 rank has nobody to talk to; write 2 or more.")
    require_torch()
    import torch

    about = f"simdp.probes.collectives, {args.backend} on {args.device}, torch {torch.__version__}"
    for world_size, collectives in (_measure(args) or {}).items():
        ranks = [f"{platform.node()} {args.device}"] * int(world_size)
        tables = [
            table(
                collective,
                int(world_size),
                {int(nbytes): median(times) for nbytes, times in by_size.items()},
                ranks,
                about,
            )
            for collective, by_size in collectives.items()
        ]
        path = args.out / f"{args.backend}_{args.device}_{world_size}ranks.log"
        write_text(path, "\n".join(tables))
        say(f"log: {path}")


def _measure(args: Any) -> dict[str, Any] | None:
    """Run the ranks; what rank 0 has found, in the process that has rank 0 or started it."""
    from simdp.probes.arguments import RankPlacement, launch

    place = RankPlacement(args.backend, args.device, args.ranks_per_device, args.threads)
    with handover() as (collect, read):
        job = CollectiveProbe(
            collectives=args.collectives,
            world_sizes=sorted(args.world_sizes),
            sizes=sorted(args.sizes),
            warm_up=args.warm_up,
            calls=args.calls,
            rounds=args.rounds,
            max_foreign=args.max_foreign,
            tries=args.tries,
            collect=collect,
        )
        launch(measure, job, max(args.world_sizes), place)
        return read()


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
