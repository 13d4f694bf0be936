"""Streams and events: time lines of virtual devices."""

from __future__ import annotations

from typing import Any

import torch

from simdp.torch.cuda.machine import Lane, Machine, VirtualDevice
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.queries import here, index_of


class Stream:
    """A queue of kernels, as ``torch.cuda.Stream``; what it is given begins when it is through.

    Parameters
    ----------
    device : torch.device, int or str, optional
        The current one by default.
    priority : int
        Kept, and without effect: kernels of several streams run beside each other at full speed.
    """

    def __init__(
        self, device: Any = None, priority: int = 0, *, lane: Lane | None = None, **_: Any
    ) -> None:
        self._machine: Machine = here("Stream")
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
        """As it was made."""
        return self.lane.priority

    @property
    def cuda_stream(self) -> int:
        """A number that no other stream has; 0 for default streams."""
        found = self._machine.devices[self.lane.place]
        return 0 if self.lane is found.default else id(self.lane)

    stream_id = cuda_stream

    def clock(self) -> float:
        """When it is through [s]."""
        return self._machine.clock(self.lane)

    def wait_event(self, event: Event) -> None:
        """Let what comes next wait for an event."""
        if event.instant is not None:
            self._machine.hold_back(self.lane, event.instant)

    def wait_stream(self, stream: Stream) -> None:
        """Let what comes next wait for all that another stream has been given."""
        self._machine.hold_back(self.lane, stream.clock())

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this place of the queue."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether it is through by the time that the rank has reached."""
        return self.clock() <= self._machine.now

    def is_capturing(self) -> bool:
        """Whether a graph is made of what it is given: never."""
        return False

    def synchronize(self) -> None:
        """Let the host wait until it is through."""
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
        When the queue is through up to here; None before it was recorded [s].
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
        """Mark where a stream is, the current one by default."""
        self.instant = (current_stream() if stream is None else stream).clock()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this."""
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Whether the queue is through up to here."""
        return self.instant is None or self.instant <= here("Event").now

    def synchronize(self) -> None:
        """Let the host wait for this."""
        if self.instant is not None:
            here("Event").reach(self.instant)

    def elapsed_time(self, end_event: Event) -> float:
        """Virtual time from this to another event [ms].

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
        """A number of its own."""
        return id(self)


def current_stream(device: Any = None) -> Stream:
    """The stream that kernels go to now."""
    found = here("current_stream").use(index_of(device))
    return Stream(lane=found.lane)


def default_stream(device: Any = None) -> Stream:
    """The stream that a device begins with."""
    found = here("default_stream").use(index_of(device))
    return Stream(lane=found.default)


def set_stream(stream: Stream | None) -> None:
    """Let kernels go to a stream from now on, and make its device the current one."""
    if stream is not None:
        here("set_stream").choose(stream.lane)


class StreamContext:
    """``with torch.cuda.stream(...)``: another stream for a while; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            machine = here("stream")
            found = machine.devices[self.stream.lane.place]
            self._before: tuple[int, VirtualDevice, Lane] = machine.place, found, found.lane
            set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is not None:
            machine = here("stream")
            place, found, lane = self._before
            machine.place, found.lane = place, lane
            machine.follow()


def synchronize(device: Any = None) -> None:
    """Let the host wait for all streams of a device."""
    here("synchronize").synchronize(index_of(device))


def patch(patches: Patches) -> None:
    """Put all of them in place."""
    cuda = torch.cuda
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "synchronize": synchronize,
    }.items():
        patches.put(cuda, name, value)
    patches.put(torch, "Stream", Stream)
    patches.put(torch, "Event", Event)
    patches.put(torch.Tensor, "record_stream", lambda self, stream: None)
