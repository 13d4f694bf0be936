"""GELU in float32 and at the ends of the range."""

from math import erf, exp, pi, sqrt

import numpy as np
from for_each import for_each

from simdp.workload.layers.activations.smooth import GELU


def test_gelu_in_float32_is_as_exact_as_float32_allows():
    x = np.linspace(-12, 12, 100_001).astype(np.float32)
    y, saved = GELU(name="g").value(x)
    slope = GELU(name="g").slope(saved)
    assert y.dtype == slope.dtype == np.float32
    phi = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in x.astype(float)])
    bell = np.array([exp(-value * value / 2) / sqrt(2 * pi) for value in x.astype(float)])
    np.testing.assert_allclose(y, x * phi, rtol=2e-7, atol=3e-7)
    np.testing.assert_allclose(slope, phi + x * bell, rtol=0, atol=2e-7)


@for_each("dtype", ["float32", "float64"])
def test_gelu_survives_values_of_any_size(dtype):
    largest = float(np.finfo(dtype).max)
    y, slope = GELU(name="g").value(np.array([-largest, -0.0, 0.0, largest, np.inf], dtype=dtype))
    assert y.tolist() == [0, 0, 0, largest, np.inf]
    np.testing.assert_allclose(slope, [0, 0.5, 0.5, 1, 1], rtol=1e-6)
