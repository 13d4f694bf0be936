"""Counts the optimizer steps of ranks: ends a script after some, and reports once after ten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from simdp.torch.charging.mode import MOVED
from simdp.torch.charging.updates import AFTER
from simdp.torch.ranks import DONE, Patches, Rank, RankLocal, StepsDone

REPORTED = 10
"""Steps of rank 0 before the report of a run that goes on."""

KEY = "steps"
"""Key of a rank's counted steps."""

NAMED = 0.01
"""Unknown operators are named from this part of a step's bytes on."""


class Counted:
    """Steps of a rank: those of its optimizer with the most, and when each ended [s]."""

    def __init__(self) -> None:
        self.by_optimizer: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.instants: list[float] = []

    @property
    def step_s(self) -> float:
        """Mean time of the steps after the first one [s]; nan for fewer than two."""
        count = len(self.instants) - 1
        return (self.instants[-1] - self.instants[0]) / count if count > 0 else float("nan")


class Steps(RankLocal):
    """Steps of all ranks.

    Parameters
    ----------
    max_steps : int, optional
        Steps after which a rank ends.
    report : callable, optional
        Called with rank 0 and its steps, once, when it goes on after ten.

    Attributes
    ----------
    counted : Counted
        Steps of rank 0, of the ranks that the script starts if it starts any.
    """

    def __init__(
        self, max_steps: int | None = None, report: Callable[[Rank, Counted], None] | None = None
    ) -> None:
        self.max_steps, self._report = max_steps, report
        self.counted = Counted()
        self._moved: list[Counter[str]] = []  # until now, by the first step, and by the last

    def patch(self, patches: Patches) -> None:
        AFTER.append(self._stepped)
        patches.undo(partial(AFTER.remove, self._stepped))

    def begin(self, rank: Rank) -> None:
        rank.state[KEY] = Counted()
        if rank.rank == 0:
            self._moved = [rank.state[MOVED]]

    def _stepped(self, rank: Rank, optimizer: Any) -> None:
        rank.runtime.check()  # a rank that waits for no other one ends here
        counted: Counted = rank.state[KEY]
        count = counted.by_optimizer[optimizer] = counted.by_optimizer.get(optimizer, 0) + 1
        if count <= len(counted.instants):
            return
        if rank.rank == 0 and count == REPORTED + 1 and self._report is not None:
            self._report(rank, counted)
        counted.instants.append(rank.clock)
        if rank.rank == 0:
            self.counted = counted
            self._moved[2:] = [Counter(rank.state[MOVED])]
        if count == self.max_steps:
            rank.state[DONE] = True
            raise StepsDone

    def unknown_operators(self) -> dict[str, float]:
        """Return operators that count as elementwise since no formula is known.

        Returns
        -------
        dict
            Part of the bytes that operators of a step move on rank 0, by name, the largest first;
            of the whole run with fewer than two steps.
        """
        counters = self._moved or [Counter[str]()]
        moved = counters[2] - counters[1] if len(counters) == 3 else Counter(counters[0])
        whole = moved.pop("", 0.0)
        return {
            name: nbytes / whole for name, nbytes in moved.most_common() if nbytes > NAMED * whole
        }
