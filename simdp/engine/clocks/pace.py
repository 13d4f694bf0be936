"""Pace: time of its own for what can be slowed down while it is under way."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy

from simdp.engine.clocks.loop import Loop, Moment, call_back


class Pace:
    """What takes some seconds of this time takes ``slow`` times as many of the loop's.

    When the pace changes, what is under way gets a new end.

    Parameters
    ----------
    loop : Loop
        Where.
    changed : callable, optional
        Called when the pace has changed.

    Attributes
    ----------
    slow : float
        The factor by which everything takes longer now.
    """

    def __init__(self, loop: Loop, changed: Callable[[], object] | None = None) -> None:
        self._loop, self._changed = loop, changed
        self.slow = 1.0
        self._own, self._since = loop.now, loop.now  # its own instant, and the loop's
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._next: Moment | None = None

    def timeout(self, seconds: float) -> simpy.Event:
        """Make an event that happens after some of its own seconds; its value is the instant."""
        event = self._loop.event()
        self.after(seconds, event.succeed)
        return event

    def after(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Do something after some of its own seconds; else as `Loop.at`."""
        own = self._own + (self._loop.now - self._since) / self.slow + seconds
        self._number += 1
        heappush(self._due, (own, self._number, act, args))
        if self._due[0][1] == self._number:
            self._announce()

    def change(self, slow: float) -> None:
        """From now on everything takes so many times as long."""
        if slow == self.slow:
            return
        now = self._loop.now
        self._own += (now - self._since) / self.slow
        self._since, self.slow = now, slow
        self._announce()
        if self._changed is not None:
            self._changed()

    def _announce(self) -> None:
        if self._due:
            left = max(self._due[0][0] - self._own, 0.0)
            self._next = self._loop.until(self._since + left * self.slow)
            call_back(self._next, self._act)

    def _act(self, moment: simpy.Event) -> None:
        if moment is not self._next:  # the pace has changed since it was announced
            return
        now, own, ready = self._loop.now, self._due[0][0], []
        while self._due and self._due[0][0] == own:
            ready.append(heappop(self._due)[2:])
        self._own, self._since = own, now
        self._announce()
        for act, args in ready:
            act(*args, now)
