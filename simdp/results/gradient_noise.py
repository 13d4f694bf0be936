"""Gradient noise: how much of a gradient is chance, and from which batch on more samples are lost.

A gradient over b samples is off by noise whose square is ``S / b`` on average, where S is the trace
of the covariance of single samples' gradients, so that ``E |g_b|^2 = |G|^2 + S / b``. Ranks' own
gradients are of a small batch b and their mean is of a large one B; two such squares give ``|G|^2``
and S. Their ratio, the noise scale, is about the batch from which on larger ones cost more samples
than they save steps.

References
----------
McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training", arXiv 1812.06162,
section 2.2 and appendix A.1: B_simple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Squares(NamedTuple):
    """Squared norms of the gradients of a step.

    Attributes
    ----------
    small, large : float
        Of a rank's own gradient, mean over ranks; and of the mean of all.
    batch, global_batch : int
        Samples that each is of.
    """

    small: float
    large: float
    batch: int
    global_batch: int

    @property
    def signal(self) -> float:
        """What is left of the square without noise, |G|^2; may be below 0 by chance."""
        b, n = self.batch, self.global_batch
        return (n * self.large - b * self.small) / (n - b)

    @property
    def noise(self) -> float:
        """Trace of the covariance of single samples' gradients, S; may be below 0 by chance."""
        return (self.small - self.large) / (1 / self.batch - 1 / self.global_batch)


def noise_scale(steps: Sequence[Squares]) -> dict[str, Any] | None:
    """Average over steps, since those of a single one are mostly chance.

    Returns
    -------
    dict or None
        ``steps``; ``signal`` and ``noise``, their means; ``noise_scale``, the ratio [samples],
        which is about the critical batch B_crit; and what the largest batch B of a step takes:
        ``samples``, in times the fewest that do, ``1 + B / B_crit``, and ``steps_taken``, in times
        the fewest, ``1 + B_crit / B``. The last three are None where chance leaves nothing of the
        signal. None without steps.
    """
    if not steps:
        return None
    signal = float(np.mean([one.signal for one in steps]))
    noise = float(np.mean([one.noise for one in steps]))
    found: dict[str, Any] = {"steps": len(steps), "signal": signal, "noise": noise}
    scale = noise / signal if signal > 0 and noise > 0 else None
    batch = max(one.global_batch for one in steps)
    more = None if scale is None else 1 + batch / scale
    longer = None if scale is None else 1 + scale / batch
    return found | {"noise_scale": scale, "samples": more, "steps_taken": longer}
