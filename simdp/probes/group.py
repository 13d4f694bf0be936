"""Process groups of the probes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from simdp.probes.arguments import ProbeError

PATIENCE = timedelta(hours=2)
"""How long ranks that have no part in a measurement wait for the others."""


class RankPlacement(NamedTuple):
    """Where ranks run."""

    backend: str  # of the measured collectives
    device: str  # ``"cpu"`` or ``"cuda"``
    ranks_per_device: int  # ranks that share a GPU
    threads: int  # CPU threads of each rank


class RankContext(NamedTuple):
    """A rank's number, its device, and a gloo group for communication outside measurements."""

    rank: int
    world_size: int
    device: Any
    control: Any

    def meet(self) -> None:
        """Wait until every rank has come here."""
        dist.barrier(group=self.control)

    def gathered(self, value: Any) -> list[Any]:
        """A value of every rank, on every rank."""
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value, group=self.control)
        return found


def by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(
    job: Callable[[RankContext, Any], None], settings: Any, world_size: int, place: RankPlacement
) -> None:
    """Run a job on every rank: on those that torchrun started, or on processes of our own.

    Parameters
    ----------
    job : callable
        Of a module that other processes can import; called with the rank's view and ``settings``.
    settings : object
        Can be pickled.
    world_size : int
        Ranks that are needed.
    place : Place
        Where they run.

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
                f"--world-sizes: asks for {world_size} ranks, but torchrun started {there}; "
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


def check_devices(world_size: int, place: RankPlacement) -> None:
    """Refuse more ranks than this machine's GPUs take.

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
    job: Callable[[RankContext, Any], None],
    settings: Any,
    n: int,
    place: RankPlacement,
    at: str | None,
) -> None:
    """One process: joins the others, and does the job."""
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
        port: int = probe.getsockname()[1]
        return port
