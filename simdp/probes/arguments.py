"""Arguments, process groups and errors of the probes."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from simdp.errors import SimdpError, unknown_name
from simdp.units import parse, parse_percent

# Errors -------------------------------------------------------------------------------------------


class ProbeError(SimdpError):
    """The probe cannot run as asked: what was given, what is allowed, what to do."""

    exit_status = 2


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises
    ------
    ProbeError
        If torch is not installed.
    """
    if find_spec("torch") is None:
        raise ProbeError(
            "probes: run real torch, which is not installed; pip install 'simdp[torch]'."
        )


def say(line: str) -> None:
    """Tell the user how far a probe is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a probe's main function; what is wrong goes to stderr in one line.

    Returns
    -------
    int
        The exit status.
    """
    try:
        main(arguments)
    except SimdpError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


# Handover -----------------------------------------------------------------------------------------

Collect = Callable[[dict[str, Any]], None]
"""Takes what was found; it can be pickled."""

Read = Callable[[], dict[str, Any] | None]
"""Gives it back; None where nothing was found, as on the other ranks of torchrun."""


@contextmanager
def handover() -> Iterator[tuple[Collect, Read]]:
    """Make both ends of a handover, through a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        yield partial(_write, path), partial(_read, path)


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found))


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


# Arguments ----------------------------------------------------------------------------------------

T = TypeVar("T")

MiB = 2**20

PRECISIONS = ("full", "tf32", "bf16", "fp16")
"""float32; float32 whose products are in TF32; autocast to bfloat16 or to float16."""

BACKENDS = ("gloo", "nccl")
DEVICES = ("cpu", "cuda")


class Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is one line and an exception."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises
        ------
        ProbeError
            Always.
        """
        raise ProbeError(f"{self.prog}: {message.rstrip('.')}; --help lists what there is.")


def listed(read: Callable[[str], T], repeats: bool = False) -> Callable[[str], list[T]]:
    """Read ``a,b,c``, each with ``read``; nothing twice, unless it may be."""

    def read_all(text: str) -> list[T]:
        found = [read(part.strip()) for part in text.split(",")]
        if not repeats and len(set(map(str, found))) < len(found):
            raise argparse.ArgumentTypeError(f"{text!r} has something twice; give each once")
        return found

    return read_all


def positive(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 1")
    return int(text)


def one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    """Read one of some names."""

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(unknown_name(what, text, known))
        return text

    return read


def bucket_cap(text: str) -> int | None:
    """Read a bucket's limit in MiB, as torch's bucket_cap_mb; ``default`` is torch's own, None."""
    return None if text == "default" else positive(text)


def size(text: str) -> int:
    """Read bytes with their unit, such as ``64 KiB``."""
    try:
        nbytes = parse(text, "data size")
    except SimdpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes < 4 or nbytes != int(nbytes):
        raise argparse.ArgumentTypeError(f"{text!r} is less than one float32, 4 B")
    return int(nbytes)


def add_ranks(parser: Parser) -> None:
    """Add what says where ranks run."""
    parser.add_argument(
        "--world-sizes", type=listed(positive), default=[1, 2], help="numbers of ranks: 1,2,4"
    )
    parser.add_argument("--backend", type=one_of("backend", BACKENDS), default="gloo")
    add_device(parser)
    parser.add_argument(
        "--ranks-per-device", type=positive, default=1, help="ranks that share a GPU, with gloo"
    )


def add_device(parser: Parser) -> None:
    """Add what says on what a rank computes."""
    parser.add_argument("--device", type=one_of("device", DEVICES), default="cpu")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads of each rank")


def share(text: str) -> float:
    """Read a share such as ``5 %``."""
    try:
        return parse_percent(text)
    except SimdpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_quiet(parser: Parser) -> None:
    """Add what is done about other programs on the machine."""
    parser.add_argument(
        "--max-foreign",
        type=share,
        default=0.05,
        help="share of the cores that other programs may use; else a round is taken again",
    )
    parser.add_argument("--tries", type=positive, default=40, help="of a round, at most")


def add_precision(parser: Parser) -> None:
    """Add the precisions to measure in; the first is that of probes that know one alone."""
    known = one_of("precision", PRECISIONS)
    parser.add_argument("--precision", type=listed(known), default=["full"])


def add_traces(parser: Parser) -> None:
    """Add where Kineto traces go."""
    parser.add_argument(
        "--traces", type=Path, help="folder: a few steps more under torch's profiler, for diagnose"
    )


def check_device(
    device: str, backend: str, ranks_per_device: int, precisions: Sequence[str]
) -> None:
    """Refuse what does not go together.

    Raises
    ------
    ProbeError
        If the backend cannot serve the device, or the device has no such precision.
    """
    if backend == "nccl" and device == "cpu":
        raise ProbeError("--backend: nccl has no CPU tensors; write --device cuda, or gloo.")
    if backend == "nccl" and ranks_per_device > 1:
        raise ProbeError(
            f"--ranks-per-device: nccl refuses {ranks_per_device} ranks on one GPU; "
            "write --backend gloo."
        )
    if device == "cpu" and ranks_per_device > 1:
        raise ProbeError(
            "--ranks-per-device: ranks on a CPU share its cores anyway; leave this out, "
            "or write --device cuda."
        )
    if device == "cpu" and "tf32" in precisions:
        raise ProbeError("--precision: a CPU has no tf32; write full, bf16 or fp16.")


# Group --------------------------------------------------------------------------------------------

PATIENCE = timedelta(hours=2)
"""How long ranks that have no part in a measurement wait for the others."""


class RankPlacement(NamedTuple):
    """Where ranks run.

    Attributes
    ----------
    backend : str
        Of the collectives that are measured.
    device : str
        ``"cpu"`` or ``"cuda"``.
    ranks_per_device : int
        Ranks that share a GPU.
    threads : int
        CPU threads of each rank.
    """

    backend: str
    device: str
    ranks_per_device: int
    threads: int


class RankContext(NamedTuple):
    """A rank's view: who it is, its device, and a group over gloo for what is not measured."""

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
