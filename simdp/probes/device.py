"""What a machine is, and what its device can do: name, versions, and three small measurements."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from simdp.probes.clock import clock, settle
from simdp.probes.figures import median

MATRIX, TINY_CALLS, REPEATS = 2048, 200, 15
"""Sides of the matrices that are multiplied, calls of a kernel that does next to nothing, and how
often each is done; the median counts."""

COPY_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
"""Float32 elements that are copied: on a CPU a bucket's worth, which caches hold in training too;
on a GPU beyond its caches."""


SHORT = {"bf16": ("bfloat16", torch.bfloat16), "fp16": ("float16", torch.float16)}
"""What scenarios and torch call the 16-bit precisions."""


def machine(device: Any, threads: int) -> dict[str, Any]:
    """Describe the machine: names and versions."""
    found = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads_per_rank": threads,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "gpus": torch.cuda.device_count(),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def _cpu_name() -> str:
    """As Linux calls it; it does not always know more than the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def figures(device: Any, precisions: Sequence[str]) -> dict[str, Any]:
    """Measure what a scenario says of a device, as quantities.

    Parameters
    ----------
    device : torch.device
        Which.
    precisions : sequence of str
        Of `simdp.probes.arguments.PRECISIONS`: with 16-bit ones there are more peaks, and with
        TF32 that of float32 is TF32's.

    Returns
    -------
    dict
        ``cluster.device`` of a scenario.

    Notes
    -----
    ``peak`` is what large matrix products reach, so that ``efficiency`` is 1; ``memory_bandwidth``
    counts what a copy reads and writes; ``launch`` is the time per kernel that does next to
    nothing, one after the other.
    """
    torch.backends.cuda.matmul.allow_tf32 = "tf32" in precisions
    dtypes = {"float32": torch.float32}
    dtypes |= {SHORT[name][0]: SHORT[name][1] for name in precisions if name in SHORT}
    return {
        "peak": {name: f"{_products(device, t) / 1e9:.4g} GFLOP/s" for name, t in dtypes.items()},
        "efficiency": 1.0,
        "memory": f"{_memory(device) / 1e9:.4g} GB",
        "memory_bandwidth": f"{_copies(device) / 1e9:.4g} GB/s",
        "launch": f"{_tiny(device) * 1e6:.3g} us",
    }


def _seconds(device: Any, work: Callable[[], Any]) -> float:
    """Median time of some work, after one round to warm up."""
    work()
    settle(device)
    watch, times = clock(device), []
    for _ in range(REPEATS):
        watch.mark()
        work()
        watch.mark()
        times.append(watch.seconds()[1])
    return median(times)


def _products(device: Any, dtype: Any) -> float:
    """Arithmetic of a product of square matrices [FLOP/s]."""
    a = torch.randn(MATRIX, MATRIX, device=device).to(dtype)
    return 2 * MATRIX**3 / _seconds(device, lambda: a @ a)


def _copies(device: Any) -> float:
    """Bytes read and written by a copy [bytes/s]."""
    a = torch.randn(COPY_ELEMENTS[device.type], device=device)
    b = torch.empty_like(a)
    return 8 * a.numel() / _seconds(device, lambda: b.copy_(a))


def _tiny(device: Any) -> float:
    """Time of a kernel over one element [s]."""
    a = torch.zeros(1, device=device)

    def calls() -> None:
        for _ in range(TINY_CALLS):
            a.add_(1.0)

    return _seconds(device, calls) / TINY_CALLS


def _memory(device: Any) -> float:
    """Memory of the device [bytes]."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
