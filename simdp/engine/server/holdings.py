"""Holdings: what each rank takes of its device's memory, and when; put in order at the end.

A worker plays a whole step ahead of the clock, while messages come to the server's device in
between, so that only the instants tell what was there at the same time.
"""

from __future__ import annotations

import numpy as np

from simdp.engine.readers.ledger import Ledger
from simdp.results.memory import PARTS
from simdp.results.trace import TraceBuilder

Taken = tuple[float, int, int, float]
"""When [s], in which step, the place in `PARTS`, and how much [bytes]."""


class Holdings:
    """What all ranks take.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._taken: list[list[Taken]] = [[] for _ in range(world_size)]

    def hold(self, rank: int, step: int, part: str, nbytes: float, now: float) -> None:
        """Let a rank take bytes at an instant, or give them back where they are negative."""
        if nbytes:
            self._taken[rank].append((now, step, PARTS.index(part), nbytes))

    def ledger(self, trace: TraceBuilder, end: float) -> Ledger:
        """Follow all of it up to an instant [s]: the peaks, and what they were made of."""
        at_peak = np.zeros((len(PARTS), len(self._taken)))
        for rank, taken in enumerate(self._taken):
            taken.sort(key=lambda one: one[0])
            who, now, peak = np.array([rank]), [0.0] * len(PARTS), 0.0
            for instant, step, part, nbytes in taken:
                if instant > end:
                    break
                trace.hold(who, step, PARTS[part], np.array([instant]), nbytes)
                now[part] += nbytes
                if sum(now) > peak:
                    peak = sum(now)
                    at_peak[:, rank] = now
        ledger = Ledger(len(self._taken))
        for name, row in zip(PARTS, at_peak, strict=True):
            ledger.hold(name, row)
        return ledger
