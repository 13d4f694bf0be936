"""Workers: what each of them is doing, and the spans of what it has done."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from simdp.engine.ops import Feed, Hold, Work
from simdp.engine.server.holdings import Holdings
from simdp.engine.server.learning import Losses
from simdp.engine.server.tapes import Tape, of_rank
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, SETUP, TraceBuilder
from simdp.workload.sampling import StepBatches


@dataclass
class Worker:
    """A rank that computes gradients.

    Attributes
    ----------
    rank : int
        Which.
    finished : list of float
        When each step ended that all update together [s]; it grows, or stays empty.
    last : int
        The last step.
    step : int
        The step that it is in.
    batches : StepBatches or None
        Of that step.
    version : int
        Updates behind the weights that it has pulled.
    came : float
        When its gradient came to the server [s].
    is_late : bool
        Whether that gradient was dropped.
    pushing : float or None
        Since when its gradient is on the way [s].
    lost : Losses or None
        What it lost in the step.
    of_update : list of Hold
        What an update in its step takes and gives back.
    """

    rank: int
    finished: list[float]
    last: int
    step: int = SETUP
    batches: StepBatches | None = None
    version: int = 0
    came: float = 0.0
    is_late: bool = False
    pushing: float | None = None
    lost: Losses | None = None
    of_update: list[Hold] = field(default_factory=list)
    _fed: int = 0
    _rows: list[tuple[str, str, float, float, float]] = field(default_factory=list)

    @property
    def num_samples(self) -> int:
        """Samples of its step."""
        assert self.batches is not None, "it has begun a step"
        return int(self.batches.sizes[:, self.rank].sum())

    @property
    def shown_step(self) -> int:
        """Its step, or the last one that anybody asks about where it is ahead of that."""
        return min(self.step, self.last)

    def play(self, tape: Tape, now: float, slowdown: Slowdown, holdings: Holdings) -> float:
        """Play its part of a step; tell when that is done [s]."""
        clock, who = now, np.array([self.rank])
        self.of_update = tape.before + tape.after
        for op in tape.work:
            match op:
                case Work():
                    seconds = op.seconds[self.rank : self.rank + 1]
                    end = float(slowdown.finish(np.array([clock]), seconds, who)[0])
                    self._rows.append((op.activity, op.name, clock, end, op.nbytes))
                    clock = end
                case Feed():
                    samples, at = op.samples[who], np.array([clock])
                    there, end_of = op.pipeline.hand_over(self._fed, samples, at, who)
                    self._fed += 1
                    self._waits_for_input(clock, float(there[0]), float(end_of[0]))
                    clock = float(end_of[0])
                case Hold():
                    holdings.hold(self.rank, op.step, op.part, of_rank(op, self.rank), clock)
                case _:
                    raise AssertionError(f"a worker does nothing together with others: {op}")
        return clock

    def _waits_for_input(self, clock: float, there: float, end: float) -> None:
        for name, start, until in (("wait for the batch", clock, there), ("copy", there, end)):
            if until > start:
                self._rows.append(("input", name, start, until, 0.0))

    def record(self, trace: TraceBuilder, until: float = np.inf) -> None:
        """Hand over the spans of what it has played, up to an instant [s]."""
        for activity, name, start, end, nbytes in self._rows:
            if start < until or start == end:
                here = self.step_at(start), COMPUTE_LANE, activity, name
                trace.add_one(self.rank, *here, start, min(end, until), nbytes)
        self._rows.clear()

    def step_at(self, instant: float) -> int:
        """The step that goes on at an instant [s]; of a late worker not the one that it began."""
        return min(max(self.step, bisect_right(self.finished, instant)), self.last)

    def pushed(self, trace: TraceBuilder, end: float, nbytes: float = 0.0) -> None:
        """Add the span of its gradient on the way, up to an instant [s]."""
        if self.pushing is not None and end > self.pushing:
            here = self.step_at(self.pushing), COMM_LANE, "comm", "push"
            trace.add_one(self.rank, *here, self.pushing, end, nbytes)

    def communicated(
        self,
        trace: TraceBuilder,
        activity: str,
        name: str,
        start: float,
        end: float,
        nbytes: float = 0.0,
    ) -> None:
        """Add a span of messages, or of waiting, unless it is nothing."""
        if end > start or nbytes:
            trace.add_one(self.rank, self.shown_step, COMM_LANE, activity, name, start, end, nbytes)
