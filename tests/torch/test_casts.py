"""Casts to 16 bits are torch's, bit for bit."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from for_each import for_each  # noqa: E402

from simdp.workload.precision import cast, numpy_dtype  # noqa: E402


@for_each(("low", "bits"), [("float16", 10), ("bfloat16", 7)])
def test_float64_near_the_middle_of_two_neighbours_is_rounded_as_torch_does(low, bits):
    random = np.random.default_rng(7)
    scale = np.exp2(random.integers(-30, 17, 2**17))
    steps = np.floor(random.uniform(2**bits, 2 ** (bits + 1), len(scale))) + 0.5
    off = random.choice([-1, 0, 1], len(scale)) * np.exp2(random.integers(-52, -20, len(scale)))
    x = random.choice([-1, 1], len(scale)) * scale * steps * 2.0**-bits * (1 + off)
    wanted = torch.from_numpy(x).to(getattr(torch, low)).double().numpy()
    np.testing.assert_array_equal(cast(x, numpy_dtype(low)).astype(np.float64), wanted)
