"""Plateau: what of the losses a schedule looks at, from step to step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simdp.arrays import Array
from simdp.errors import ScenarioError
from simdp.workload.schedules import Schedule
from simdp.workload.schedules.reduce_lr_on_plateau import ReduceLROnPlateau, Seen

STATE = "plateau/seen"
"""Best loss, bad values, cooldown, reductions; then the sum and number of an epoch's losses."""


class Plateau:
    """Counts how often the loss has ceased to fall; never, unless the schedule asks for it.

    Parameters
    ----------
    schedule : Schedule
        Of the learning rate.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule if isinstance(schedule, ReduceLROnPlateau) else None
        self._seen = Seen()
        self._sum, self._count = 0.0, 0

    @property
    def reductions(self) -> int:
        """How often the rate has been lowered."""
        return self._seen.reductions

    def look(self, loss: float | None, closes_epoch: bool) -> None:
        """Look at the loss of a step, where there is one, and at the epoch's mean at its end."""
        if self._schedule is None:
            return
        if loss is not None:
            self._sum, self._count = self._sum + loss, self._count + 1
        if self._count and (closes_epoch or self._schedule.per == "step"):
            self._seen = self._schedule.seen(self._seen, self._sum / self._count)
            self._sum, self._count = 0.0, 0

    def state_dict(self) -> dict[str, Array]:
        """What is kept from step to step."""
        if self._schedule is None:
            return {}
        best, *counts = self._seen
        first = np.nan if best is None else best
        return {STATE: np.array([first, *counts, self._sum, self._count])}

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Go on from where a run stopped.

        Raises
        ------
        ScenarioError
            If the state has no such thing.
        """
        if self._schedule is None:
            return
        if STATE not in arrays:
            raise ScenarioError([f"the state has no {STATE}, which this run keeps."])
        best, num_bad, cooldown, reductions, total, count = arrays[STATE].tolist()
        found = None if np.isnan(best) else best
        self._seen = Seen(found, int(num_bad), int(cooldown), int(reductions))
        self._sum, self._count = total, int(count)
