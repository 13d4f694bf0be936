"""Arguments, process groups and errors of the probes."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn, TypeVar

from simdp.errors import SimdpError, unknown_name
from simdp.units import parse, parse_percent

# Errors -------------------------------------------------------------------------------------------


class ProbeError(SimdpError):
    """The probe cannot run as requested: given value, allowed values, remedy."""

    exit_status = 2


def require_torch() -> None:
    """Check that torch is installed.

    Raises
    ------
    ProbeError
        If it is not.
    """
    if find_spec("torch") is None:
        raise ProbeError(
            "probes: run real torch, which is not installed; pip install 'simdp[torch]'."
        )


def progress(line: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a probe's main function, print its error to stderr, and return the exit status."""
    try:
        main(arguments)
    except SimdpError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


Collect = Callable[[object], None]
"""Stores the results; it can be pickled."""

Read = Callable[[], Any]
"""Returns them; None without results, as on the other ranks of torchrun."""


@contextmanager
def handover() -> Iterator[tuple[Collect, Read]]:
    """Yield functions that store and read results through a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.pickle"
        yield partial(_write, path), partial(_read, path)


def _write(path: Path, results: object) -> None:
    path.write_bytes(pickle.dumps(results))


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else None


END = "\0"
"""Last line of `printed_lines`, since a helper process of the ranks may keep the pipe open."""


@contextmanager
def printed_lines(show: Callable[[str], None]) -> Iterator[None]:
    """Pass each line that this process and its ranks print to ``show``, instead of printing it.

    ``show`` is called in another thread.
    """
    reading, writing = os.pipe()
    kept = os.dup(STDOUT)
    thread = Thread(target=_pass_on, args=(reading, show), daemon=True)
    thread.start()
    try:
        with os.fdopen(writing, "w", buffering=1) as stream:
            os.dup2(writing, STDOUT)
            try:
                with redirect_stdout(stream):
                    yield
            finally:
                os.dup2(kept, STDOUT)
                stream.write(f"\n{END}\n")
    finally:
        os.close(kept)
        thread.join()


STDOUT = 1
"""File descriptor of the standard output, which ranks inherit."""


def _pass_on(reading: int, show: Callable[[str], None]) -> None:
    with os.fdopen(reading, errors="replace") as stream:
        for line in stream:
            if line == f"{END}\n":
                return
            if line.strip():
                show(line.rstrip())


# Arguments ----------------------------------------------------------------------------------------

T = TypeVar("T")

MiB = 2**20

PRECISIONS = ("full", "tf32", "bf16", "fp16")
"""float32; float32 with products in TF32; autocast to bfloat16 or to float16."""

BACKENDS = ("gloo", "nccl")
DEVICES = ("cpu", "cuda")
OPTIMIZERS = ("sgd", "adam", "adamw")


class Parser(argparse.ArgumentParser):
    """An argument parser that raises one-line errors."""

    def error(self, message: str) -> NoReturn:
        """Raise a `ProbeError`."""
        raise ProbeError(f"{self.prog}: {message.rstrip('.')}; see --help.")


def listed(read: Callable[[str], T], repeats: bool = False) -> Callable[[str], list[T]]:
    """Return a parser of ``a,b,c``, each with ``read``, without duplicates unless ``repeats``."""

    def read_all(text: str) -> list[T]:
        values = [read(part.strip()) for part in text.split(",")]
        if not repeats and len(set(map(str, values))) < len(values):
            raise argparse.ArgumentTypeError(f"{text!r} has something twice; give each once")
        return values

    return read_all


def positive(text: str) -> int:
    """Parse an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return int(text)


def one_of(noun: str, known: Sequence[str]) -> Callable[[str], str]:
    """Return a parser of one of some names."""

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(unknown_name(noun, text, known))
        return text

    return read


def bucket_cap(text: str) -> int | None:
    """Parse a bucket's limit in MiB, as torch's bucket_cap_mb; ``default`` is torch's, None."""
    return None if text == "default" else positive(text)


def size(text: str) -> int:
    """Parse bytes with their unit, such as ``64 KiB``."""
    try:
        nbytes = parse(text, "data size")
    except SimdpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes < 4 or nbytes != int(nbytes):
        raise argparse.ArgumentTypeError(f"{text!r} is less than one float32, 4 B")
    return int(nbytes)


def add_ranks(parser: Parser) -> None:
    """Add the options of the ranks' placement."""
    parser.add_argument(
        "--world-sizes", type=listed(positive), default=[1, 2], help="numbers of ranks: 1,2,4"
    )
    parser.add_argument("--backend", type=one_of("backend", BACKENDS), default="gloo")
    add_device(parser)
    parser.add_argument(
        "--ranks-per-device", type=positive, default=1, help="ranks that share a GPU, with gloo"
    )


def add_device(parser: Parser) -> None:
    """Add the options of a rank's device."""
    parser.add_argument("--device", type=one_of("device", DEVICES), default="cpu")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads of each rank")


def share(text: str) -> float:
    """Parse a share such as ``5 %``."""
    try:
        return parse_percent(text)
    except SimdpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_quiet(parser: Parser) -> None:
    """Add the options about other programs on the machine."""
    parser.add_argument(
        "--max-foreign",
        type=share,
        default=0.05,
        help="share of the cores that other programs may use; else a round is taken again",
    )
    parser.add_argument("--tries", type=positive, default=40, help="of a round, at most")


def add_precision(parser: Parser) -> None:
    """Add the precisions to measure in; probes of a single one use the first."""
    known = one_of("precision", PRECISIONS)
    parser.add_argument("--precision", type=listed(known), default=["full"])


def add_models(parser: Parser) -> None:
    """Add the models, and changes to them."""
    parser.add_argument("--models", type=listed(str), default=["mlp", "transformer"])
    parser.add_argument("--set", action="append", default=[], help="resnet50.image_size=64")


def per_model(sizes: Sequence[int], names: Sequence[str]) -> dict[str, int]:
    """Return micro-batches by model: one for all, or one for each.

    Raises
    ------
    ProbeError
        If there are more or fewer.
    """
    if len(sizes) not in (1, len(names)):
        raise ProbeError(
            f"--microbatch: {len(sizes)} sizes for {len(names)} models; give one, or one for each."
        )
    return dict(zip(names, [*sizes] * (len(names) if len(sizes) == 1 else 1), strict=True))


def add_optimizer(parser: Parser) -> None:
    """Add the optimizer."""
    optimizers = one_of("optimizer", OPTIMIZERS)
    parser.add_argument("--optimizer", type=optimizers, default="sgd")


def add_traces(parser: Parser) -> None:
    """Add the folder of Kineto traces."""
    parser.add_argument(
        "--traces", type=Path, help="folder: a few steps more under torch's profiler, for diagnose"
    )


def check_device(
    device: str, backend: str, ranks_per_device: int, precisions: Sequence[str]
) -> None:
    """Reject incompatible options.

    Raises
    ------
    ProbeError
        If the backend does not support the device, or the device lacks the precision.
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
