"""StepRecord: what a step did to the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.results.gradient_noise import Squares


class StepRecord(NamedTuple):
    """What a step did to the numbers; None where there are none.

    Attributes
    ----------
    samples : int
        Of all ranks.
    loss : float or None
        Mean over all that the ranks' losses average.
    loss_per_rank : list of (float or None), or None
        Each rank's own mean.
    lr : float or None
        Learning rate of the optimizer, its parameter groups left aside; None in inference.
    grad_norm : float or None
        Of rank 0's gradient, unscaled and before clipping; of the first rank that takes part.
    loss_scale : float or None
        By which the losses of this step were multiplied.
    skipped : bool or None
        Whether inf or nan kept the weights as they were; None without a loss scale.
    squares : Squares or None
        Squared norms of the ranks' gradients, where they are asked for.
    """

    samples: int
    loss: float | None
    loss_per_rank: list[float | None] | None
    lr: float | None
    grad_norm: float | None
    loss_scale: float | None
    skipped: bool | None
    squares: Squares | None = None


def mean_losses(
    losses: Sequence[Floats], counts: Floats, adds: bool = False
) -> tuple[float | None, list[float | None]]:
    """Join the losses of micro-steps.

    Parameters
    ----------
    losses : sequence of ndarray, each of shape `(world_size,)`
        Of every micro-step; nan on a rank without any.
    counts : ndarray, shape `(num_micro, world_size)`
        How many things each averages.
    adds : bool
        Whether losses are sums, which add up.

    Returns
    -------
    (float or None, list of (float or None))
        Over all ranks, and of each.
    """
    totals = (np.where(counts > 0, losses, 0.0) * (1.0 if adds else counts)).sum(axis=0)
    each = counts.sum(axis=0)
    if adds:
        return (float(totals.sum()) if each.sum() else None), [
            float(total) if count else None for total, count in zip(totals, each, strict=True)
        ]
    mean = float(totals.sum() / each.sum()) if each.sum() else None
    return mean, [
        float(total / count) if count else None for total, count in zip(totals, each, strict=True)
    ]
