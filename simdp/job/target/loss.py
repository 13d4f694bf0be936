"""A training loss, which the replicas really reach, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.job.target.base import Target
from simdp.spec import Float, Int


class LossReached(Target):
    """A training loss that the run goes on to, and no further: ``{loss: 0.1}``.

    Reached with the first step at which the mean loss of the last ``window`` steps is no more than
    it. A run that has not reached it within ``workload.steps`` or ``workload.epochs`` says so.

    Attributes
    ----------
    loss : float
        As ``loss`` in the result: the mean over all ranks of what the optimizer lessens.
    window : int
        Steps whose losses are averaged.
    """

    kind: Literal["loss"] = "loss"
    loss: Float
    window: Int = Field(10, ge=1, le=10**6)

    def need(self, global_batch: float, num_samples: int) -> None:
        return None

    def reached_after(self, losses: Sequence[float | None]) -> int | None:
        """Steps of a run until it is reached; None where it never is."""
        if len(losses) < self.window:
            return None
        values = np.array([np.nan if loss is None else loss for loss in losses], dtype=float)
        means = np.lib.stride_tricks.sliding_window_view(values, self.window).mean(axis=1)
        there = np.flatnonzero(means <= self.loss)
        return int(there[0]) + self.window if len(there) else None

    def is_reached(self, losses: Sequence[float | None]) -> bool:
        """Whether the last steps of a run have it."""
        last = losses[-self.window :]
        known = [loss for loss in last if loss is not None]
        return len(known) == self.window and float(np.mean(known)) <= self.loss
