"""The loop: SimPy's, in which instants are exact, and what falls on one has an order.

What happens in it are SimPy's processes, timeouts and events. SimPy adds up delays, which would
tell two instants apart that are the same but for rounding; here an instant stays as it was worked
out. What shares an instant happens in turns: events as they are triggered, then ranks, the lower
one first, then links are shared anew, and whoever looks at all that has come does so last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy
from simpy.events import NORMAL, EventPriority

SHARES, LAST = EventPriority(2**40), EventPriority(2**40 + 1)
"""Turns after those of all ranks: links are shared anew; somebody looks at all that has come."""


def turn_of(rank: int) -> EventPriority:
    """The turn of a rank at an instant."""
    return EventPriority(NORMAL + 1 + rank)


class Until(float):
    """A delay that ends at a certain instant, to the bit: adding it to what it is by now tells it.

    Parameters
    ----------
    instant, now : float
        When it ends; what it is by now [s].
    """

    instant: float

    def __new__(cls, instant: float, now: float) -> Until:
        """Make a number that compares as the delay does."""
        delay = super().__new__(cls, instant - now)
        delay.instant = instant
        return delay

    def __radd__(self, now: float) -> float:
        return self.instant


class Moment(simpy.Timeout):
    """A timeout that ends at a certain instant, and has its turn there.

    Parameters
    ----------
    loop : Loop
        Where.
    instant : float
        When [s]; this is also its value.
    turn : EventPriority
        Its turn there.
    """

    def __init__(self, loop: Loop, instant: float, turn: EventPriority) -> None:
        self.turn = turn
        super().__init__(loop, Until(instant, loop.now), instant)


def call_back(event: simpy.Event, act: Callable[[simpy.Event], Any]) -> None:
    """Let an event call somebody when it happens."""
    assert event.callbacks is not None, "it has happened already"
    event.callbacks.append(act)


class Loop(simpy.Environment):
    """An environment of SimPy's that also takes instants."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._due: dict[float, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {}

    def schedule(
        self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0
    ) -> None:
        """Schedule an event as SimPy does; a `Moment` in its turn."""
        super().schedule(event, event.turn if isinstance(event, Moment) else priority, delay)

    def until(self, instant: float, turn: EventPriority = NORMAL) -> Moment:
        """Make a timeout that ends at an instant [s], or now if that is over; the value is when."""
        now = self.now
        return Moment(self, instant if instant > now else now, turn)

    def at(self, instant: float, act: Callable[..., object], *args: Any) -> None:
        """Do something at an instant; all that is due there shares one timeout, in order of calls.

        Parameters
        ----------
        instant : float
            When [s]; now, if that is over.
        act : callable
            Called with the arguments, and then the instant.
        *args
            For ``act``.
        """
        due = self._due.get(instant)
        if due is None:
            instant = max(instant, self.now)
            due = self._due.setdefault(instant, [])
            if not due:
                call_back(self.until(instant), self._act)
        due.append((act, args))

    def in_turn(
        self, instant: float, turn: EventPriority, act: Callable[..., object], *args: Any
    ) -> None:
        """Do something at an instant in a certain turn; else as `at`."""
        call_back(self.until(instant, turn), lambda moment: act(*args, moment.value))

    def _act(self, moment: simpy.Event) -> None:
        now = self.now
        for act, args in self._due.pop(now):
            act(*args, now)
