"""GELU, exact: x Phi(x) with the normal distribution function Phi, as torch's default."""

from __future__ import annotations

from math import pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.arrays.blocks import blocks

FAR = 40.0
"""Beyond, Phi is 0 or 1 in any dtype."""

TURN = 4.5
TAIL = (-0.9143915077, 2.684156087, -3.789100088, 3.267243625, -1.795237761, 0.5)
"""``Phi(-a) exp(a^2 / 2)`` as a polynomial in ``a / (a + TURN)``, the highest power first.

Our own fit to SciPy's erfcx: off by less than 3e-8 of Phi, half a step of float32 below 1.
"""


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["gelu"] = "gelu"
    flops_per_element: ClassVar[int] = 15

    def value(self, x: Array) -> tuple[Array, Array]:
        """Find the slope too: both need the same exponential."""
        x = np.ascontiguousarray(x)
        y, slope = np.empty_like(x), np.empty_like(x)
        flat, flat_y, flat_slope = x.reshape(-1), y.reshape(-1), slope.reshape(-1)
        for part in blocks(x.size):
            near = np.clip(flat[part], -FAR, FAR)
            cdf, bell = _normal(near)
            np.multiply(flat[part], cdf, out=flat_y[part])
            near *= bell
            near *= 1 / sqrt(2 * pi)
            np.add(cdf, near, out=flat_slope[part])
        return y, slope

    def slope(self, saved: Array) -> Array:
        return saved


def _normal(x: Array) -> tuple[Array, Array]:
    """Phi(x), and ``exp(-x^2 / 2)``."""
    bell = x * x
    bell *= -0.5
    np.exp(bell, out=bell)
    if x.dtype == np.float32:
        return _cdf32(x, bell), bell
    from scipy.special import ndtr

    return ndtr(x), bell


def _cdf32(x: Array, bell: Array) -> Array:
    """Phi(x) in float32, ten times as fast as SciPy's."""
    far = np.abs(x)
    near = far + np.float32(TURN)
    far /= near
    tail = np.multiply(far, np.float32(TAIL[0]), out=near)
    for coefficient in TAIL[1:-1]:
        tail += np.float32(coefficient)
        tail *= far
    tail += np.float32(TAIL[-1])
    tail *= bell
    np.subtract(np.float32(0.5), tail, out=tail)
    # Minus where x is: np.copysign takes three times as long.
    tail.view(np.uint32)[...] ^= x.view(np.uint32) & np.uint32(2**31)
    tail += np.float32(0.5)
    return tail
