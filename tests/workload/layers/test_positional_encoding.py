"""The positional encoding is the one of "Attention is all you need"."""

from pathlib import Path

import numpy as np
from layer_checks import forward

from simdp.workload.layers.embedding import PositionalEncoding

GOLDEN = Path(__file__).parents[2] / "golden"


def test_the_positional_encoding_is_the_one_that_torch_was_given():
    layer = PositionalEncoding(name="p", d_model=32)
    y, _ = forward(layer, np.zeros((1, 12, 32)))
    with np.load(GOLDEN / "g04_enc_post.npz") as stored:
        np.testing.assert_allclose(y[0], stored["pe"], atol=1e-15)
    assert layer.parameters() == []


def test_the_positional_encoding_of_an_odd_width_ends_with_a_sine():
    y, _ = forward(PositionalEncoding(name="p", d_model=3), np.zeros((1, 2, 3)))
    np.testing.assert_allclose(
        y[0, 1], [np.sin(1), np.cos(1), np.sin(10000 ** (-2 / 3))], rtol=1e-14
    )
