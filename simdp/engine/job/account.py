"""Splits the time of a job by activity, second by second."""

from __future__ import annotations

from typing import NamedTuple

from simdp.results.job import BADPUT, JobStretch

PARTS = ("productive", *BADPUT)
"""Parts of a job's time, which sum to its duration."""


class TimeShares(NamedTuple):
    """Breakdown of training time, as fractions or in seconds.

    ``productive`` is the undisturbed step; the others are waits for batches and for slow ranks, and
    the rest.
    """

    productive: float
    data: float = 0.0
    straggler: float = 0.0
    other: float = 0.0

    def plus(self, others: TimeShares, factor: float) -> TimeShares:
        """Add another breakdown times a factor."""
        a, b, c, d = self
        p, q, r, s = others
        return TimeShares(a + factor * p, b + factor * q, c + factor * r, d + factor * s)


class Account:
    """The parts of a run's time.

    ``seconds`` by `PARTS` sum to the job's time; ``queued`` is the part of it in which the job
    waited for nodes [s]; ``strip`` is the timeline, if it is kept.
    """

    def __init__(self, keeps_strip: bool = False) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.queued = 0.0
        self.strip: list[JobStretch] | None = [] if keeps_strip else None

    def add(self, part: str, start: float, seconds: float) -> None:
        """Add time of one part."""
        self.seconds[part] += seconds
        self._note(part, start, start + seconds)

    def train(self, start: float, seconds: float, shares: TimeShares) -> None:
        """Add time of steps."""
        self._share(seconds, shares)
        self._note("training", start, start + seconds)

    def cycles(
        self, start: float, count: int, training: float, saving: float, shares: TimeShares
    ) -> None:
        """Add cycles of training and a checkpoint."""
        self._share(count * training, shares)
        self.seconds["checkpoint_save"] += count * saving
        for cycle in range(count) if self.strip is not None else ():
            begin = start + cycle * (training + saving)
            self._note("training", begin, begin + training)
            self._note("checkpoint_save", begin + training, begin + training + saving)

    def lose(self, done: TimeShares, since: float) -> None:
        """Move time of steps that must be repeated, all after an instant [s], to ``lost_work``."""
        for part, seconds in zip(done._fields, done, strict=True):
            self.seconds[part] -= seconds
        self.seconds["lost_work"] += sum(done)
        self._mark_lost(since)

    def _share(self, seconds: float, shares: TimeShares) -> None:
        for part, share in zip(shares._fields, shares, strict=True):
            self.seconds[part] += seconds * share

    def _mark_lost(self, since: float) -> None:
        strip, place = self.strip or [], len(self.strip or ())
        while place and strip[place - 1].end > since:
            place -= 1
            what, start, end = strip[place]
            if what == "training" and start < since:
                strip[place : place + 1] = [
                    JobStretch(what, start, since),
                    JobStretch("lost", since, end),
                ]
            elif what == "training":
                strip[place] = JobStretch("lost", start, end)

    def _note(self, what: str, start: float, end: float) -> None:
        strip = self.strip
        if strip is None or end <= start:
            return
        if strip and strip[-1].what == what and strip[-1].end == start:
            start = strip.pop().start
        strip.append(JobStretch(what, start, end))
