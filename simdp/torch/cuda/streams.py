"""Streams, events and memory of torch.cuda; torch.accelerator, and random numbers."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from simdp.torch.cuda.machine import DeviceLedger, Lane, VirtualDevice, VirtualMachine, machine
from simdp.torch.cuda.queries import device_count, here, index_of, is_available
from simdp.torch.ranks import Patches

# Streams ------------------------------------------------------------------------------------------


class Stream:
    """A queue of kernels, as ``torch.cuda.Stream``; new work begins when it is idle.

    Parameters
    ----------
    device : torch.device, int or str, optional
        Default: the current one.
    priority : int
        Stored, without effect: kernels of several streams run concurrently at full speed.
    """

    def __init__(
        self, device: Any = None, priority: int = 0, *, lane: Lane | None = None, **_: Any
    ) -> None:
        self._machine: VirtualMachine = here("Stream")
        if lane is None:
            lane = self._machine.use(index_of(device)).new_lane(priority)
        self.lane = lane

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self._machine.devices[self.lane.place].device

    @property
    def device_index(self) -> int:
        """Its device's number."""
        return self.lane.place

    device_type = 1  # c10::DeviceType::CUDA

    @property
    def priority(self) -> int:
        """Its given priority."""
        return self.lane.priority

    @property
    def cuda_stream(self) -> int:
        """A unique number; 0 for default streams."""
        is_default = self.lane is self._machine.devices[self.lane.place].default
        return 0 if is_default else id(self.lane)

    stream_id = cuda_stream

    def clock(self) -> float:
        """End of its queued work [s]."""
        return self._machine.clock(self.lane)

    def wait_event(self, event: Event) -> None:
        """Let later work wait for an event."""
        if event.instant is not None:
            self._machine.hold_back(self.lane, event.instant)

    def wait_stream(self, stream: Stream) -> None:
        """Let later work wait for all work queued on another stream."""
        self._machine.hold_back(self.lane, stream.clock())

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place of the queue."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether it is finished at the rank's clock."""
        return self.clock() <= self._machine.now

    def is_capturing(self) -> bool:
        """Return whether work is captured in a graph: never."""
        return False

    def synchronize(self) -> None:
        """Let the host wait until it is finished."""
        self._machine.reach(self.clock())

    def __enter__(self) -> Stream:
        self._inside = StreamContext(self)
        self._inside.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._inside.__exit__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.lane is other.lane

    def __hash__(self) -> int:
        return hash(id(self.lane))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A mark in a queue, as ``torch.cuda.Event``.

    Attributes
    ----------
    instant : float or None
        When the queue reaches it; None before it was recorded [s].
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
        **_: Any,
    ) -> None:  # fmt: skip
        if interprocess:
            raise NotImplementedError(
                "torch.cuda.Event(interprocess=True): ranks here share no events; let them meet "
                "in a collective."
            )
        self.enable_timing, self.blocking = enable_timing, blocking
        self.instant: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of a stream's queued work, by default of the current one."""
        self.instant = (current_stream() if stream is None else stream).clock()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Return whether the queue has reached it."""
        return self.instant is None or self.instant <= here("Event").now

    def synchronize(self) -> None:
        """Let the host wait for this."""
        if self.instant is not None:
            here("Event").reach(self.instant)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the virtual time from this to another event [ms].

        Raises
        ------
        RuntimeError
            As torch's, if one of them has no time.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.instant is None or end_event.instant is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event.instant - self.instant) * 1e3

    @property
    def event_id(self) -> int:
        """A unique number."""
        return id(self)


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of a device."""
    return Stream(lane=here("current_stream").use(index_of(device)).lane)


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a device."""
    return Stream(lane=here("default_stream").use(index_of(device)).default)


def set_stream(stream: Stream | None) -> None:
    """Set the current stream, and its device as the current one."""
    if stream is not None:
        here("set_stream").choose(stream.lane)


class StreamContext:
    """``with torch.cuda.stream(...)``: another stream within the context; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            mine = here("stream")
            device = mine.devices[self.stream.lane.place]
            self._before: tuple[int, VirtualDevice, Lane] = mine.place, device, device.lane
            set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is not None:
            mine = here("stream")
            mine.place, device, lane = self._before
            device.lane = lane
            mine.follow()


def synchronize(device: Any = None) -> None:
    """Let the host wait for all streams of a device.

    A script without devices may give the CPU, as PowerSGD's hook does for its buckets.
    """
    mine = here("synchronize")
    index = index_of(device, allow_cpu=not mine.used)
    if index >= 0:
        mine.synchronize(index)


def patch(patches: Patches) -> None:
    """Install all of them."""
    functions = current_stream, default_stream, set_stream, synchronize
    for value in (Stream, Event, StreamContext, *functions):
        patches.put(torch.cuda, value.__name__, value)
    patches.put(torch.cuda, "stream", StreamContext)
    patches.put(torch, "Stream", Stream)
    patches.put(torch, "Event", Event)
    patches.put(torch.Tensor, "record_stream", lambda self, stream: None)


# Memory -------------------------------------------------------------------------------------------


def ledger(device: Any = None) -> DeviceLedger:
    """Return the memory ledger of a device."""
    return here("memory").devices[index_of(device)].ledger


FIGURES = {
    "memory_allocated": "allocated",
    "max_memory_allocated": "peak",
    "memory_reserved": "reserved",
    "max_memory_reserved": "peak_reserved",
    "memory_cached": "reserved",
    "max_memory_cached": "peak_reserved",
}
"""Attributes of the ledger that functions of torch.cuda return [bytes]."""


def figure(attribute: str, device: Any = None) -> int:
    """Return a figure of the memory ledger of a device [bytes]."""
    return int(getattr(ledger(device), attribute))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart the peaks."""
    ledger(device).reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Restart the counts of allocations and releases."""
    counts = ledger(device)
    counts.total_allocated = counts.total_freed = counts.num_allocs = counts.num_frees = 0
    counts.num_ooms = 0


def empty_cache() -> None:
    """Release the allocator's cache, on all devices."""
    for device in here("empty_cache").devices:
        device.ledger.trim()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return free and total bytes."""
    memory = ledger(device)
    return memory.free, memory.capacity


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Return figures of the allocator under torch's names, of pool ``all`` only."""
    memory = ledger(device)
    stats = {
        "allocation.all.current": memory.num_allocs - memory.num_frees,
        "allocation.all.allocated": memory.num_allocs,
        "allocation.all.freed": memory.num_frees,
        "num_ooms": memory.num_ooms,
        "num_alloc_retries": 0,
    }
    tensors = memory.allocated, memory.peak
    for name, (now, peak) in {
        **dict.fromkeys(("allocated_bytes", "active_bytes", "requested_bytes"), tensors),
        "reserved_bytes": (memory.reserved, memory.peak_reserved),
    }.items():
        stats[f"{name}.all.current"], stats[f"{name}.all.peak"] = now, peak
        stats[f"{name}.all.allocated"] = memory.total_allocated
        stats[f"{name}.all.freed"] = memory.total_freed
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return the same, with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the main figures as lines of text."""
    memory = ledger(device)
    rows = [
        ("Allocated memory", memory.allocated, memory.peak),
        ("Reserved memory", memory.reserved, memory.peak_reserved),
    ]
    lines = [f"| {name:<18} | {now:>16} B | peak {most:>16} B |" for name, now, most in rows]
    return "\n".join([f"| simulated memory of cuda:{memory.index} |", *lines])


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the fraction of the device's memory that the process may use."""
    return ledger(device).fraction


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit the process to a fraction of the device's memory.

    Raises
    ------
    ValueError
        As torch's, if it is not a fraction.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    ledger(device).fraction = fraction


FUNCTIONS = (
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    empty_cache,
    mem_get_info,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    get_per_process_memory_fraction,
    set_per_process_memory_fraction,
)

OLD_NAMES = ("reset_max_memory_allocated", "reset_max_memory_cached")
"""Other names of the function that restarts the peaks."""


def patch_memory(patches: Patches) -> None:
    """Install all of them."""
    functions: dict[str, Any] = {function.__name__: function for function in FUNCTIONS}
    functions |= dict.fromkeys(OLD_NAMES, reset_peak_memory_stats)
    functions |= {name: partial(figure, attribute) for name, attribute in FIGURES.items()}
    for name, function in functions.items():
        patches.put(torch.cuda, name, function)
        patches.put(torch.cuda.memory, name, function)


# Accelerator --------------------------------------------------------------------------------------


def current_accelerator(check_available: bool = False) -> torch.device | None:
    """Return the type of the devices."""
    return torch.device("cuda") if is_available() else None


def _accelerator(here: VirtualMachine, original: Any, *args: Any) -> torch.device:
    """Detect for ``fully_shard`` without a mesh whether ranks use devices, or NCCL."""
    meets = dist.is_initialized() and dist.get_backend() == "nccl"
    if is_available() and (here.used or meets):
        return torch.device("cuda")
    return original(*args)


def _check_capture(here: VirtualMachine, original: Any, *args: Any) -> None:
    """Check where devices are used only: Adam looks at the current stream, which would use one."""
    if here.used:
        original(*args)


SAME = (
    *("is_available", "device_count", "current_stream", "set_stream", "synchronize", "empty_cache"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("memory_stats", "reset_peak_memory_stats"),
)
"""Functions with the name of those of ``torch.cuda``."""

RENAMED = {
    **dict.fromkeys(("current_device_index", "current_device_idx"), "current_device"),
    **dict.fromkeys(("set_device_index", "set_device_idx"), "set_device"),
    "device_index": "device",
    "get_memory_info": "mem_get_info",
}
"""Names in ``torch.cuda`` of other functions."""


def patch_accelerator(patches: Patches) -> None:
    """Install the functions, once those of ``torch.cuda`` are."""
    check = "_accelerator_graph_capture_health_check"
    patches.wrap(torch.optim.Optimizer, check, _check_capture, machine)
    patches.wrap(torch._C, "_get_accelerator", _accelerator, machine)
    patches.put(torch.accelerator, "current_accelerator", current_accelerator)
    for name, of_cuda in {**dict(zip(SAME, SAME, strict=True)), **RENAMED}.items():
        if hasattr(torch.accelerator, name):
            patches.put(torch.accelerator, name, getattr(torch.cuda, of_cuda))
    _random(patches)


def _random(patches: Patches) -> None:
    """Let devices draw from the rank's generator.

    A device's seed does not change it, so that a script draws the same numbers as without devices.
    """
    functions: dict[str, Any] = {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda seed: None),
        **dict.fromkeys(("seed", "seed_all"), lambda: None),
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(device_count())],
        "set_rng_state_all": _set_states,
    }
    for owner in (torch.cuda, torch.cuda.random):
        for name, function in functions.items():
            patches.put(owner, name, function)


def _set_states(new_states: Any) -> None:
    for state in list(new_states)[:1]:
        torch.set_rng_state(state)
