"""The device under test: clocks, quiet runs, and step times."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from simdp.files import write_whole
from simdp.probes import networks
from simdp.probes.figures import StepSeconds, median
from simdp.probes.record import DeviceFigures, Machine, StepMemory
from simdp.probes.zoo import Settings

# Clock --------------------------------------------------------------------------------------------


class DeviceClock(Protocol):
    """Records instants without blocking, and returns the differences afterwards."""

    def mark(self) -> int:
        """Record when all work given so far is done; return the mark's number."""

    def seconds(self) -> list[float]:
        """Return seconds from the first mark to each one; waits for the device, and clears them."""


class HostClock:
    """``perf_counter``: on a CPU a call returns when its work is done."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> int:
        """Record the current instant."""
        self._marks.append(time.perf_counter())
        return len(self._marks) - 1

    def seconds(self) -> list[float]:
        """Return seconds from the first mark to each one."""
        marks, self._marks = self._marks, []
        return [mark - marks[0] for mark in marks]


class EventClock:
    """CUDA events on the current stream: recorded in its order, without blocking."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Record when the stream reaches this point."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def seconds(self) -> list[float]:
        """Return seconds from the first event to each one, once the device has finished."""
        torch.cuda.synchronize()
        events, self._events = self._events, []
        return [events[0].elapsed_time(event) / 1e3 for event in events]


def clock(device: torch.device) -> DeviceClock:
    """Return the clock for a device."""
    return EventClock() if device.type == "cuda" else HostClock()


def settle(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Return the memory of deleted tensors to a device."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


# Device -------------------------------------------------------------------------------------------

MATRIX = {"cpu": 2048, "cuda": 8192}
"""Size of the square matrices of a product, which fill the device."""

TINY_CALLS, REPEATS = 200, 15
"""Calls of a minimal kernel, and repetitions of every measurement; the median counts."""

COPY_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
"""Float32 elements copied: on a CPU a bucket, which caches hold in training too; on a GPU beyond
its caches."""


SHORT = {"bf16": ("bfloat16", torch.bfloat16), "fp16": ("float16", torch.float16)}
"""Names of the 16-bit precisions in scenarios and in torch."""


def first_device(kind: str) -> torch.device:
    """Return the CPU, or the first GPU."""
    return torch.device(kind, *([0] if kind == "cuda" else []))


def machine(device: torch.device, threads: int) -> Machine:
    """Describe the machine: names and versions."""
    gpu: dict[str, object] = {}
    if device.type == "cuda":
        gpu = {
            "gpu": torch.cuda.get_device_name(device),
            "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count,
            "gpus": torch.cuda.device_count(),
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        threads_per_rank=threads,
        platform=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        **gpu,
    )


def _cpu_name() -> str:
    """Return the CPU's name on Linux, which may be only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def figures(device: torch.device, precisions: Sequence[str]) -> DeviceFigures:
    """Measure a device's figures.

    With TF32 or 16-bit ``precisions`` of `simdp.probes.arguments.PRECISIONS` there are more peaks.

    Notes
    -----
    ``peak`` is reached by large matrix products, so that ``efficiency`` is 1; ``memory_bandwidth``
    counts bytes that a copy reads and writes; ``launch`` is the time per minimal kernel, one after
    the other.
    """
    rates = {"float32": _products(device, torch.float32)}
    if "tf32" in precisions:
        rates["tfloat32"] = _products(device, torch.float32, tf32=True)
    rates |= {SHORT[p][0]: _products(device, SHORT[p][1]) for p in precisions if p in SHORT}
    return DeviceFigures(
        peak={name: f"{rate / 1e9:.4g} GFLOP/s" for name, rate in rates.items()},
        memory=f"{_memory(device) / 1e9:.4g} GB",
        memory_bandwidth=f"{_copies(device) / 1e9:.4g} GB/s",
        launch=f"{_tiny(device) * 1e6:.3g} us",
    )


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the median time of some work, after one warm-up round."""
    work()
    settle(device)
    watch, times = clock(device), []
    for _ in range(REPEATS):
        watch.mark()
        work()
        watch.mark()
        times.append(watch.seconds()[1])
    return median(times)


def _products(device: torch.device, dtype: torch.dtype, tf32: bool = False) -> float:
    """Return the arithmetic of a product of square matrices [FLOP/s]."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    n = MATRIX[device.type]
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / _seconds(device, lambda: a @ b)


def _copies(device: torch.device) -> float:
    """Return bytes read and written by a copy [bytes/s]."""
    a = torch.randn(COPY_ELEMENTS[device.type], device=device)
    b = torch.empty_like(a)
    return 8 * a.numel() / _seconds(device, lambda: b.copy_(a))


def _tiny(device: torch.device) -> float:
    """Return the time of a kernel over one element [s]."""
    a = torch.zeros(1, device=device)

    def calls() -> None:
        for _ in range(TINY_CALLS):
            a.add_(1.0)

    return _seconds(device, calls) / TINY_CALLS


def _memory(device: torch.device) -> float:
    """Return the memory of the device [bytes]."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


LEARNING_RATE = 1e-4
"""Small, so that weights hardly change: only time is measured."""

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """Steps of one model on one fixed batch.

    Parameters
    ----------
    settings : Settings
        Of the model.
    microbatch : int
        Samples.
    precision : str
        A key of `simdp.probes.arguments.PRECISIONS`.
    optimizer : str
        A key of `OPTIMIZERS`.
    device : torch.device
        The device.

    Attributes
    ----------
    module : torch.nn.Module
        The model without a wrapper.
    """

    def __init__(
        self,
        settings: Settings,
        microbatch: int,
        precision: str,
        optimizer: str,
        device: torch.device,
    ) -> None:
        torch.manual_seed(0)
        torch.set_flush_denormal(True)  # they cost a CPU a hundredfold, and come with random data
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
            precision == "tf32"
        )
        self.device, self.low = device, AUTOCAST.get(precision)
        self.module = networks.build(settings).to(device)
        self.batch = networks.batch(settings, microbatch, device)
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of the forward pass."""
        if self.low is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.low)

    def forward(self, model: nn.Module) -> Tensor:
        """Return the loss of the batch, scaled if gradients are in float16."""
        x, y = self.batch
        with self.autocast():
            return self.scaler.scale(networks.loss_of(model(x), y))

    def step(self, model: nn.Module, watch: DeviceClock) -> None:
        """Run one step, with a mark after each of its three parts."""
        loss = self.forward(model)
        watch.mark()
        loss.backward()
        watch.mark()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        watch.mark()

    def run(
        self,
        model: nn.Module,
        warm_up: int,
        steps: int,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> StepSeconds:
        """Time ``steps`` steps of a model after ``warm_up`` untimed ones.

        ``around`` creates the context of each step.
        """
        watch = clock(self.device)
        for _ in range(warm_up):
            with around():
                self.step(model, watch)
        watch.seconds()
        watch.mark()
        for _ in range(steps):
            with around():
                self.step(model, watch)
        return _parts(watch.seconds())

    def issue(self, model: nn.Module, steps: int) -> StepSeconds:
        """Time the host's part of steps, each of which begins on an idle device.

        On a CPU this is the whole step. A host that waits for the device, as GradScaler does for
        its check, waits here too.
        """
        times = []
        for _ in range(steps):
            settle(self.device)
            watch = HostClock()
            watch.mark()
            self.step(model, watch)
            times.append(_parts(watch.seconds()))
        settle(self.device)
        return StepSeconds.joined(times)

    def memory(self, model: nn.Module, path: Path | None = None) -> StepMemory:
        """Return the CUDA allocator's figures of a step.

        Parameters
        ----------
        model : torch.nn.Module
            The module, or its wrapper.
        path : Path, optional
            File of a snapshot of the allocator's history, for torch's memory_viz.
        """
        settle(self.device)
        torch.cuda.reset_peak_memory_stats()
        at_rest = torch.cuda.memory_allocated()
        if path is not None:
            torch.cuda.memory._record_memory_history(max_entries=HISTORY)
        self.step(model, HostClock())
        settle(self.device)
        if path is not None:
            write_whole(path, partial(pickle.dump, torch.cuda.memory._snapshot()))
            torch.cuda.memory._record_memory_history(enabled=None)
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        at_rest, allocated, reserved = (f"{n / 1e9:.5g} GB" for n in (at_rest, *peaks))
        return StepMemory(at_rest=at_rest, allocated=allocated, reserved=reserved)


HISTORY = 200_000
"""Events of the allocator that a snapshot keeps, at most."""


def _parts(at: list[float]) -> StepSeconds:
    """Return the times of steps and of their parts, from an instant and three per step."""
    parts = [[b - a for a, b in zip(at[k::3], at[k + 1 :: 3], strict=False)] for k in range(3)]
    return StepSeconds([b - a for a, b in zip(at[::3], at[3::3], strict=False)], *parts)
