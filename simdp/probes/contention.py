"""Measures what the kernel of a collective takes from compute on one GPU.

Blocks that each hold a multiprocessor, as NCCL's do, move bytes at a given rate or only wait, while
products, elementwise kernels, attention or steps of models run beside them. Writes a record. Needs
CUDA's compiler, nvcc.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from simdp.errors import SimdpError
from simdp.files import check_outputs
from simdp.probes import arguments, zoo
from simdp.probes.arguments import ProbeError, progress, require_torch, run
from simdp.probes.figures import median, milliseconds
from simdp.probes.record import write_record
from simdp.units import parse

SOURCE = Path(__file__).with_name("hold.cu")

SHARED_BYTES = 80 * 1024
"""Shared memory of a block [bytes]; NCCL's is about as large."""

BUFFER_BYTES = 2**26
"""Bytes that each block reads over and over, beyond the caches for several blocks."""

LIMIT = 5.0
"""Seconds after which the blocks end by themselves."""

REPEATS = 3


def rate(text: str) -> float:
    """Parse a rate such as ``50 GB/s``; ``wait`` is 0."""
    if text == "wait":
        return 0.0
    try:
        return parse(text, "bandwidth")
    except SimdpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> arguments.Parser:
    """Return the probe's arguments."""
    options = arguments.Parser(prog="simdp.probes.contention", description=__doc__)
    arguments.add_precision(options)
    arguments.add_models(options)
    options.set_defaults(models=[], precision=["bf16"])
    options.add_argument(
        "--microbatch",
        type=arguments.listed(arguments.positive, repeats=True),
        default=[8],
        help="samples: one number for all models, or one for each",
    )
    options.add_argument(
        "--blocks", type=arguments.listed(arguments.positive), default=[4, 8, 16, 32]
    )
    options.add_argument(
        "--rates",
        type=arguments.listed(rate),
        default=[0.0, 50e9, 150e9, 450e9],
        help="bytes that all blocks read and write per second, or wait: wait,50 GB/s,150 GB/s",
    )
    options.add_argument("--out", type=Path, default=Path("probe_contention.yaml"))
    return options


def main(argv: Sequence[str]) -> None:
    """Run the measurement.

    Raises
    ------
    ProbeError
        If arguments are incompatible, or torch, a GPU or nvcc is missing.
    """
    args = parser().parse_args(argv)
    check_outputs(args.out)
    models = zoo.chosen(args.models, args.set)
    sizes = arguments.per_model(args.microbatch, list(models))
    require_torch()

    from simdp.probes import device as devices
    from simdp.probes.group import RankPlacement, check_devices

    check_devices(1, RankPlacement("gloo", "cuda", 1, 1))
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        raise ProbeError(
            "simdp.probes.contention: nvcc is not on the PATH; install CUDA's toolkit."
        )
    device = devices.first_device("cuda")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        holder = Holder(_compile(nvcc, Path(folder)), max(args.blocks), str(device))
        for name, work in _works(args, models, sizes, str(device)):
            rows += _measure(holder, name, work, args)
            devices.free(device)
    record = {
        "probe": "contention",
        "machine": devices.machine(device, 1).model_dump(),
        "device": devices.figures(device, args.precision).model_dump(),
        "rows": rows,
    }
    write_record(args.out, record, "contention")


def _compile(nvcc: str, folder: Path) -> ctypes.CDLL:
    """Compile the kernel for this GPU, and load it."""
    path = folder / "hold.so"
    command = [nvcc, "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v"]
    done = subprocess.run([*command, "-o", path, SOURCE], capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ProbeError(f"nvcc: {lines[0] if lines else done.returncode}; see {SOURCE}.")
    progress(next((line for line in done.stderr.splitlines() if "registers" in line), "compiled"))
    return ctypes.CDLL(str(path))


class BesideBlocks(NamedTuple):
    """What the blocks did beside some work."""

    seconds: float  # of the work [s]
    bandwidth: float  # bytes that the blocks read and wrote per second [bytes/s]


class Holder:
    """Runs blocks beside work.

    Parameters
    ----------
    library
        The compiled kernel.
    blocks : int
        At most.
    device : str
        The GPU, as torch calls it.
    """

    def __init__(self, library: ctypes.CDLL, blocks: int, device: str) -> None:
        import torch

        self.library, self.device = library, device
        self.piece = int(library.piece_bytes())
        self.pieces = BUFFER_BYTES // self.piece
        size = blocks * self.pieces * self.piece // 4
        self.buffers = [torch.randn(size, device=device) for _ in range(2)]
        self.stop = torch.zeros(1, dtype=torch.int32, device=device)
        self.moved = torch.zeros(2 * blocks, dtype=torch.int64, device=device)
        self.streams = [torch.cuda.Stream(device) for _ in range(3)]

    def time(self, work: Callable[[], object], blocks: int, bandwidth: float) -> BesideBlocks:
        """Time some work beside ``blocks`` that move ``bandwidth`` bytes/s; 0 blocks: alone."""
        import torch

        holding, working, ending = self.streams
        self.stop.zero_()
        self.moved.zero_()
        torch.cuda.synchronize()
        if blocks:
            self._launch(blocks, bandwidth, holding.cuda_stream)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(working):
            torch.cuda._sleep(20_000_000)  # the host runs ahead meanwhile
            begin.record()
            work()
            end.record()
        with torch.cuda.stream(ending):
            ending.wait_event(end)
            self.stop.fill_(1)
        torch.cuda.synchronize()
        moved = self.moved.view(-1, 2)[:blocks].tolist()
        speed = sum(nbytes / nanoseconds * 1e9 for nbytes, nanoseconds in moved)
        return BesideBlocks(begin.elapsed_time(end) / 1e3, speed)

    def _launch(self, blocks: int, bandwidth: float, stream: int) -> None:
        period = int(2e9 * self.piece * blocks / bandwidth) if bandwidth else 0
        pointer, integer = ctypes.c_void_p, ctypes.c_longlong
        status = self.library.launch(
            ctypes.c_int(blocks),
            ctypes.c_int(SHARED_BYTES),
            pointer(self.buffers[0].data_ptr()),
            pointer(self.buffers[1].data_ptr()),
            integer(self.pieces),
            integer(period),
            pointer(self.stop.data_ptr()),
            ctypes.c_ulonglong(int(LIMIT * 1e9)),
            pointer(self.moved.data_ptr()),
            pointer(stream),
        )
        if status:
            raise ProbeError(f"simdp.probes.contention: CUDA error {status} at the launch.")


def _works(
    args: argparse.Namespace,
    models: dict[str, zoo.Settings],
    sizes: dict[str, int],
    device: str,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield kinds of work by name: each fills the GPU for some milliseconds."""
    import torch

    from simdp.probes.device import HostClock, Stepper

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    for n, calls in ((8192, 8), (4096, 60), (1024, 400)):
        a, b, out = random(n, n), random(n, n), random(n, n)
        yield f"product_{n}", _repeated(calls, partial(torch.mm, a, b, out=out))
    x, y, z = (random(2**27, dtype=torch.float32) for _ in range(3))
    yield "elementwise", _repeated(10, partial(torch.add, x, y, out=z))
    h, weight = random(2**15, 4096), random(4096)
    yield "layer_norm", _repeated(20, partial(torch.layer_norm, h, (4096,), weight, weight))
    attention = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    qkv = [random(8, 16, 2048, 64) for _ in range(3)]
    yield "attention", _repeated(20, partial(attention, *qkv))
    image = random(64, 256, 56, 56).contiguous(memory_format=torch.channels_last)
    kernel = random(256, 256, 3, 3).contiguous(memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True
    yield "convolution", _repeated(20, partial(torch.conv2d, image, kernel, padding=1))
    for name, settings in models.items():
        stepper = Stepper(settings, sizes[name], args.precision[0], "sgd", torch.device(device))
        step = partial(stepper.step, stepper.module, HostClock())
        yield f"{name}, micro-batch {sizes[name]}", _repeated(3, step)


def _repeated(calls: int, work: Callable[[], object]) -> Callable[[], object]:
    def all_calls() -> None:
        for _ in range(calls):
            work()

    return all_calls


def _measure(
    holder: Holder, name: str, work: Callable[[], object], args: argparse.Namespace
) -> list[dict[str, object]]:
    """Time one kind of work alone, and beside every number of blocks and rate."""
    for _ in range(2):
        holder.time(work, 0, 0.0)
    cases = [(0, 0.0), *((b, r) for b in args.blocks for r in args.rates)]
    timed: dict[tuple[int, float], list[BesideBlocks]] = {case: [] for case in cases}
    for _ in range(REPEATS):  # in turn, so that a change of the clock affects all alike
        for case in cases:
            timed[case].append(holder.time(work, *case))
    alone = median([held.seconds for held in timed[0, 0.0]])
    rows = list[dict[str, object]]()
    for (blocks, bandwidth), repeats in timed.items():
        seconds = median([beside.seconds for beside in repeats])
        row = {
            "work": name,
            "blocks": blocks,
            "rate": f"{bandwidth / 1e9:.4g} GB/s",
            "moved": f"{median([beside.bandwidth for beside in repeats]) / 1e9:.4g} GB/s",
            "time": milliseconds(seconds),
            "ratio": round(seconds / alone, 4),
        }
        rows.append(row)
    progress(f"{name}: {milliseconds(alone)} alone, {len(rows) - 1} cases beside blocks")
    return rows


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
