"""GELU, exact: x Phi(x) with the normal distribution function Phi, as torch's default."""

from __future__ import annotations

from math import pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from simdp.workload.layers.activation import Activation
from simdp.workload.layers.base import Array


def _normal_cdf(x: Array) -> Array:
    from scipy.special import erf

    cdf: Array = 0.5 * (1 + erf(x / sqrt(2)))
    return cdf


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["gelu"] = "gelu"
    flops_per_element: ClassVar[int] = 15

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * _normal_cdf(x), x

    def slope(self, saved: Array) -> Array:
        density = np.exp(-0.5 * saved * saved) / sqrt(2 * pi)
        slope: Array = _normal_cdf(saved) + saved * density
        return slope
