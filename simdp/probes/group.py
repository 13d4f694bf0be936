"""Process groups of the probes."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from simdp.probes.arguments import ProbeError, handover

T = TypeVar("T")

PATIENCE = timedelta(hours=2)
"""Timeout of ranks that take no part in a measurement."""


class RankPlacement(NamedTuple):
    """Placement of ranks."""

    backend: str  # of the measured collectives
    device: str  # ``"cpu"`` or ``"cuda"``
    ranks_per_device: int  # ranks that share a GPU
    threads: int  # CPU threads of each rank


class RankContext(NamedTuple):
    """A rank's number, its device, and a gloo group for communication outside measurements."""

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.control)

    def gathered(self, value: T) -> list[T]:
        """Return a value of every rank, on every rank."""
        values = [value] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values


def by_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(
    job: Callable[[RankContext, T], None], settings: T, world_size: int, place: RankPlacement
) -> None:
    """Run a job on every rank: those started by torchrun, or in new processes.

    Parameters
    ----------
    job : callable
        Of a module that other processes can import; called with the rank's context and
        ``settings``.
    settings : object
        Can be pickled.
    world_size : int
        Required ranks.
    place : RankPlacement
        Their placement.

    Raises
    ------
    ProbeError
        If there are too few ranks or GPUs, or a rank fails.
    """
    check_devices(world_size, place)
    if by_torchrun():
        there = int(os.environ["WORLD_SIZE"])
        if there < world_size:
            raise ProbeError(
                f"--world-sizes: needs {world_size} ranks, but torchrun started {there}; "
                f"write --nproc-per-node {world_size}, or smaller world sizes."
            )
        _rank(int(os.environ["RANK"]), job, settings, there, place, None)
        return
    address = f"tcp://127.0.0.1:{_free_port()}"
    try:
        processes.spawn(_rank, (job, settings, world_size, place, address), world_size)
    except processes.ProcessRaisedException as error:
        reason = str(error).strip().splitlines()[-1]
        raise ProbeError(f"rank {error.error_index} failed: {reason}") from None
    except processes.ProcessExitedException as error:
        raise ProbeError(f"rank {error.error_index} was ended: {error}") from None


def run_probe(
    measure: Callable[[RankContext, T], None],
    settings: Callable[..., T],
    args: Namespace,
    **options: object,
) -> Any:
    """Run a probe on the ranks of its arguments; return rank 0's results where it runs.

    ``settings`` is called with ``options``, the arguments that all probes share, and ``collect``.
    """
    place = RankPlacement(args.backend, args.device, args.ranks_per_device, args.threads)
    with handover() as (collect, read):
        job = settings(
            world_sizes=sorted(args.world_sizes),
            warm_up=args.warm_up,
            rounds=args.rounds,
            max_foreign=args.max_foreign,
            tries=args.tries,
            collect=collect,
            **options,
        )
        launch(measure, job, max(args.world_sizes), place)
        return read()


def check_devices(world_size: int, place: RankPlacement) -> None:
    """Refuse more ranks than this machine's GPUs support.

    Raises
    ------
    ProbeError
        If there are no GPUs, or too few.
    """
    if place.device != "cuda":
        return
    if not torch.cuda.is_available():
        raise ProbeError("--device: torch finds no GPU here; write --device cpu.")
    there = torch.cuda.device_count() * place.ranks_per_device
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if local > there:
        raise ProbeError(
            f"--world-sizes: {local} ranks on {torch.cuda.device_count()} GPUs, each of which "
            f"takes {place.ranks_per_device}; write --ranks-per-device, with --backend gloo."
        )


def _rank(
    rank: int,
    job: Callable[[RankContext, T], None],
    settings: T,
    n: int,
    place: RankPlacement,
    at: str | None,
) -> None:
    """Join the process group in one process, and run the job."""
    torch.set_num_threads(place.threads)
    device = torch.device("cpu")
    if place.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", rank))
        device = torch.device("cuda", local // place.ranks_per_device)
        torch.cuda.set_device(device)
    dist.init_process_group(
        place.backend, init_method=at or "env://", rank=rank, world_size=n, timeout=PATIENCE
    )
    try:
        control = dist.new_group(backend="gloo", timeout=PATIENCE)
        job(RankContext(rank, n, device, control), settings)
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
