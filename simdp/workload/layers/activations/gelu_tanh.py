"""GELU with the normal distribution function approximated by a tanh, as GPT-2's gelu_new."""

from __future__ import annotations

from math import pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation

INNER, CUBE = sqrt(2 / pi), 0.044715


class GELUTanh(Activation):
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``: torch's GELU(approximate="tanh").

    Hendrycks and Gimpel, arXiv 1606.08415, section 2.
    """

    kind: Literal["gelu_tanh"] = "gelu_tanh"
    flops_per_element: ClassVar[int] = 18

    def value(self, x: Array) -> tuple[Array, Array]:
        return 0.5 * x * (1 + _inner_tanh(x)), x

    def slope(self, saved: Array) -> Array:
        t = _inner_tanh(saved)
        inner = INNER * (1 + 3 * CUBE * saved * saved)
        slope: Array = 0.5 * (1 + t + saved * (1 - t * t) * inner)
        return slope


def _inner_tanh(x: Array) -> Array:
    t: Array = np.tanh(INNER * (x + CUBE * x * x * x))
    return t
