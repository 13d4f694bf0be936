"""Measures collectives on every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from simdp.probes.arguments import Collect, progress
from simdp.probes.device import clock, settle
from simdp.probes.figures import CollectiveTimes, undisturbed
from simdp.probes.group import RankContext

ITEMSIZE = 4  # float32

COLD_NBYTES = {"cpu": 2**28, "cuda": 0}
"""Total size of alternating buffers. A training step touches weights, gradients and buckets between
two calls, so that a CPU's caches hold no bucket; a GPU's matter little, and nccl-tests has one
buffer."""

MAX_BUFFERS = 64

Call = Callable[[], object]


class CollectiveProbe(NamedTuple):
    """Measurement settings."""

    collectives: list[str]  # keys of `CALLS`
    # world_sizes, sizes: numbers of ranks; bytes of the whole buffer, as nccl-tests counts them
    world_sizes: list[int]
    sizes: list[int]
    # warm_up, calls: untimed and timed calls in every round
    warm_up: int
    calls: int
    rounds: int  # repetitions of all sizes
    # share of the cores that other programs may use without the round being repeated
    max_foreign: float
    tries: int  # maximum repetitions of a round
    collect: Collect  # receives rank 0's `CollectiveTimes`


def _all_gather(full: Tensor, part: Tensor, group: dist.ProcessGroup) -> Call:
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.14 on
    return lambda: call(full, part, group=group)


def _reduce_scatter(full: Tensor, part: Tensor, group: dist.ProcessGroup) -> Call:
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: call(part, full, group=group)


def _all_to_all(full: Tensor, part: Tensor, group: dist.ProcessGroup) -> Call:
    out = torch.empty_like(full)
    return lambda: dist.all_to_all_single(out, full, group=group)


CALLS: dict[str, Callable[[Tensor, Tensor, dist.ProcessGroup], Call]] = {
    "all_gather": _all_gather,
    "all_reduce": lambda full, part, group: partial(dist.all_reduce, full, group=group),
    "all_to_all": _all_to_all,
    "broadcast": lambda full, part, group: partial(dist.broadcast, full, 0, group=group),
    "reduce": lambda full, part, group: partial(dist.reduce, full, 0, group=group),
    "reduce_scatter": _reduce_scatter,
}
"""torch's calls; ``full`` is the whole buffer, ``part`` one rank's piece."""


def measure(here: RankContext, job: CollectiveProbe) -> None:
    """Time every collective at every size, and collect all times of every call.

    Calls follow each other as in nccl-tests. Over all ranks, the median is robust against other
    load on the machine.
    """
    collected: CollectiveTimes = {}
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
            collected.setdefault(n, {})[collective] = {
                nbytes: [t for times in every for t in times[nbytes]] for nbytes in job.sizes
            }
            if here.rank == 0:
                progress(f"{collective}: {n} ranks, {len(job.sizes)} sizes")
    if here.rank == 0:
        job.collect(collected)


def _round(
    here: RankContext, job: CollectiveProbe, collective: str, n: int, group: dist.ProcessGroup
) -> dict[int, list[float]]:
    """Return seconds of some calls at every size; nothing on a rank that takes no part."""
    if here.rank >= n:
        return {}
    return {nbytes: _time(here, job, collective, n, nbytes, group) for nbytes in job.sizes}


def _time(
    here: RankContext,
    job: CollectiveProbe,
    collective: str,
    n: int,
    nbytes: int,
    group: dist.ProcessGroup,
) -> list[float]:
    """Return seconds of some calls at one size."""
    count = max(nbytes // ITEMSIZE // n, 1)
    num_buffers = max(1, min(COLD_NBYTES[here.device.type] // nbytes, MAX_BUFFERS))
    buffers = [torch.zeros(count * n, device=here.device) for _ in range(num_buffers)]
    calls = cycle([CALLS[collective](full, full[:count].clone(), group) for full in buffers])
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
