"""Clocks of a rank: CUDA events on a GPU, the host's counter on a CPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes instants while work goes on, and tells what passed between them afterwards."""

    def mark(self) -> int:
        """Note the instant at which all work that was given so far is done; return its number."""

    def seconds(self) -> list[float]:
        """Seconds from the first mark to each one; waits for the device, and forgets the marks."""


class HostClock:
    """``perf_counter``: on a CPU a call returns when its work is done."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> int:
        """Note the present instant."""
        self._marks.append(time.perf_counter())
        return len(self._marks) - 1

    def seconds(self) -> list[float]:
        """Seconds from the first mark to each one."""
        marks, self._marks = self._marks, []
        return [mark - marks[0] for mark in marks]


class EventClock:
    """CUDA events on the current stream: they pass in its order and hold nobody up."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def mark(self) -> int:
        """Note the instant at which the stream comes to this point."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def seconds(self) -> list[float]:
        """Seconds from the first event to each one, once the device is through."""
        torch.cuda.synchronize()
        events, self._events = self._events, []
        return [events[0].elapsed_time(event) / 1e3 for event in events]


def clock(device: Any) -> Clock:
    """The clock that suits a device."""
    return EventClock() if device.type == "cuda" else HostClock()


def settle(device: Any) -> None:
    """Wait until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
