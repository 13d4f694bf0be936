"""GradScaler: the loss scale of one run, step by step. What it multiplies stands in the engine."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import numpy as np


class ScalerSettings(NamedTuple):
    """How a loss scale begins and moves; the defaults are torch.amp.GradScaler's.

    Attributes
    ----------
    init_scale : float
        The first step's.
    growth_factor, backoff_factor : float
        It is multiplied by one of these, above and below 1.
    growth_interval : int
        Number of good steps in a row before it grows.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


class GradScaler:
    """The loss scale of a run: the loss is multiplied by it, the gradients by its inverse.

    It backs off after a step whose averaged gradient holds inf or nan on any rank, and such a
    step is skipped; it grows after so many good steps in a row.

    Parameters
    ----------
    settings : ScalerSettings
        From `Precision.scaler`.

    Attributes
    ----------
    scale : float
        The next step's, a float32 value.
    growth_tracker : int
        Number of good steps in a row, counted anew whenever the scale grows or backs off.
    """

    def __init__(self, settings: ScalerSettings) -> None:
        self.settings = settings
        self.scale = _float32(settings.init_scale)
        self.growth_tracker = 0

    def inverse(self) -> float:
        """Return ``1 / scale``, divided in float64 and rounded to float32, as torch does."""
        with np.errstate(divide="ignore"):
            return _float32(np.float64(1) / np.float64(self.scale))

    def update(self, found_inf: bool) -> None:
        """Move on to the next step's scale.

        Parameters
        ----------
        found_inf : bool
            Whether this step's gradients held inf or nan.

        References
        ----------
        torch's aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale_cuda_kernel: products
        in float64, rounded to float32; a scale beyond float32 is not taken.
        """
        if found_inf:
            self.scale = _float32(self.scale * self.settings.backoff_factor)
            self.growth_tracker = 0
            return
        self.growth_tracker += 1
        if self.growth_tracker == self.settings.growth_interval:
            grown = _float32(self.scale * self.settings.growth_factor)
            if isfinite(grown):
                self.scale = grown
            self.growth_tracker = 0


def _float32(value: float) -> float:
    """Round to the nearest float32, or to inf."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))
