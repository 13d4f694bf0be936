"""Noise: what the gradients of a step's ranks are like, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simdp.arrays import Array, Ints
from simdp.results.gradient_noise import Squares


def squares(
    gradients: Sequence[Mapping[str, Array]], sizes: Ints, loss_scale: float
) -> Squares | None:
    """Measure the ranks' gradients and their mean.

    Parameters
    ----------
    gradients : sequence of mapping of str to ndarray
        Of each rank, over all its micro-steps.
    sizes : ndarray, shape `(world_size,)`, int64
        Samples of each rank in the step.
    loss_scale : float
        What all of them were multiplied by.

    Returns
    -------
    Squares or None
        None where ranks have unequal parts of the step, or a gradient is not finite.
    """
    n = len(gradients)
    if n < 2 or len(set(sizes.tolist())) != 1 or not sizes[0]:
        return None
    small = large = 0.0
    for name in dict.fromkeys(name for own in gradients for name in own):
        parts = [own[name].astype(np.float64) for own in gradients if name in own]
        small += sum(float(np.vdot(part, part)) for part in parts) / n
        mean = sum(parts) / n
        large += float(np.vdot(mean, mean))
    if not np.isfinite(small):
        return None
    scale = loss_scale**2
    return Squares(small / scale, large / scale, int(sizes[0]), int(sizes.sum()))
