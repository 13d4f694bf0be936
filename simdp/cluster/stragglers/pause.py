"""Pauses: a rank that stops at regular intervals, as for garbage collection or a health check."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler
from simdp.spec import Int, PositiveSeconds, Quantity, problem
from simdp.units import format_quantity

_time = Quantity("time", exclusive=True)
Steps = Annotated[Int, Field(ge=1)]


def _every(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise problem(f"{value} is out of range; write a time or a number of steps >= 1.")
        return value
    return _time.validate(value)


class Pause(Straggler):
    """Rank ``rank`` stops for ``duration``, again and again.

    Attributes
    ----------
    rank : int
        Which, from 0.
    every : int or float
        A time [s]: the pauses begin at every multiple of it on the simulated clock, whatever the
        rank does then; only compute is delayed. Or a number of steps: the pause comes at the
        beginning of steps ``every``, ``2 every``, ... (counted from 0).
    duration : float
        Length of one pause [s].
    """

    by_factors: ClassVar[bool] = False

    kind: Literal["pause"] = "pause"
    rank: Int = Field(ge=0)
    every: Annotated[
        int | float,
        PlainValidator(_every, json_schema_input_type=Steps | PositiveSeconds),
        PlainSerializer(lambda v: v if isinstance(v, int) else format_quantity(v, "time")),
    ]
    duration: PositiveSeconds

    @model_validator(mode="after")
    def _leaves_time_to_work(self) -> Pause:
        if isinstance(self.every, float) and self.duration >= self.every:
            raise problem(
                f"duration {format_quantity(self.duration, 'time')} leaves no time to work between "
                f"pauses {format_quantity(self.every, 'time')} apart; make it shorter."
            )
        return self

    def on_rank(self) -> int | None:
        return self.rank

    def comes_and_goes(self) -> bool:
        return True

    def lost(self, step: int, world_size: int) -> Floats:
        lost = np.zeros(world_size)
        if isinstance(self.every, int) and step > 0 and step % self.every == 0:
            lost[self.rank : self.rank + 1] = self.duration  # idle where there is no such rank
        return lost

    def on_the_clock(self) -> bool:
        """Whether the pauses come at instants, rather than in steps."""
        return isinstance(self.every, float)

    def window(self, instant: float) -> tuple[float, float]:
        """Begin and end of the pause at an instant, or of the next one [s]."""
        number = max(int(instant // self.every), 1)
        if instant >= number * self.every + self.duration:
            number += 1
        return number * self.every, number * self.every + self.duration

    def finish(self, start: float, seconds: float) -> float:
        """Instant at which work ends that starts at ``start`` and needs ``seconds`` [s].

        Jumps over whole periods: between two pauses the device works ``every - duration``.
        """
        every, working = float(self.every), float(self.every) - self.duration
        period = int(start // every)
        # Time since the last pause ended; before the first there is none to wait for.
        since = start - period * every - (self.duration if period else 0.0)
        worked = max(since, 0.0)
        room = (working if period else every) - worked
        begin = max(start, period * every + self.duration) if period else start
        if seconds <= room:
            return begin + seconds
        periods, rest = divmod(seconds - room, working)
        if rest == 0.0:  # ends just as a pause begins
            periods, rest = periods - 1, working
        return float((period + 1 + periods) * every + self.duration + rest)
