"""Report: what the steps of a run with a server were, and what the server did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simdp.engine.record import StepRecord, mean_losses
from simdp.engine.server.learning import Losses


@dataclass
class Step:
    """What is known so far of a step.

    Attributes
    ----------
    samples : int
        Behind the gradients that were applied.
    losses : dict of int to Losses
        Of each worker whose gradient was; none without numerics.
    first : int or None
        The lowest of them.
    lr, norm : float
        Learning rate of the update that took its gradient, and norm of what that applied.
    adds : bool
        Whether losses are sums, which add up.
    """

    samples: int = 0
    losses: dict[int, Losses] = field(default_factory=dict)
    first: int | None = None
    lr: float = 0.0
    norm: float | None = None
    adds: bool = False

    def add(
        self, rank: int, samples: int, lost: Losses | None, lr: float, norm: float | None
    ) -> None:
        """Note that a worker's gradient was applied."""
        self.samples += samples
        if lost is not None:
            self.losses[rank] = lost
        if self.first is None or rank < self.first:
            self.first, self.lr, self.norm = rank, lr, norm

    def record(self, world_size: int) -> StepRecord:
        """Sum it up; a worker whose gradient was not applied has no loss."""
        if not self.losses:
            return StepRecord(self.samples, None, None, self.lr, None, None, None)
        num_micro = max(len(lost.counts) for lost in self.losses.values())
        losses, counts = np.zeros((2, num_micro, world_size))
        for rank, lost in self.losses.items():
            losses[:, rank], counts[:, rank] = lost
        mean, each = mean_losses(list(losses), counts, self.adds)
        return StepRecord(self.samples, mean, each, self.lr, self.norm, None, None)


@dataclass
class Deeds:
    """What the server did.

    Attributes
    ----------
    updates, begun, applied, dropped : int
        Updates; gradients that workers began to compute, and what became of them.
    busy : float
        Time that the updates took [s].
    staleness : dict of int to int
        How many applied gradients had which staleness.
    """

    updates: int = 0
    begun: int = 0
    applied: int = 0
    dropped: int = 0
    busy: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)

    def apply(self, staleness: int) -> None:
        """Count a gradient that is applied."""
        self.applied += 1
        self.staleness[staleness] = self.staleness.get(staleness, 0) + 1

    def summary(self, rank: int, simulated: float) -> dict[str, Any]:
        """What result.json says of the server, which lives on a rank; see `Result.server`."""
        total = sum(value * count for value, count in self.staleness.items())
        largest = max(self.staleness)
        return {
            "rank": rank,
            "updates": self.updates,
            "utilization": self.busy / simulated if simulated else 0.0,
            "applied": self.applied,
            "dropped": self.dropped,
            "under_way": self.begun - self.applied - self.dropped,
            "staleness": {
                "mean": total / self.applied,
                "max": largest,
                "histogram": [self.staleness.get(value, 0) for value in range(largest + 1)],
            },
        }
