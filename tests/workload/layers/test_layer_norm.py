"""LayerNorm against its formula and torch's figures."""

import numpy as np
from layer_checks import drawn, forward, kept_nbytes, weights_of

from simdp.workload.layers import base
from simdp.workload.layers.normalization import LayerNorm


def test_layer_norm_is_its_formula():
    layer = LayerNorm(name="n", normalized_shape=6, eps=1e-3)
    x, weights = drawn(4, 3, 6), weights_of(layer)
    y, _ = forward(layer, x, weights=weights)
    deviation = np.sqrt(x.var(axis=2, keepdims=True) + 1e-3)
    plain = (x - x.mean(axis=2, keepdims=True)) / deviation
    np.testing.assert_allclose(
        y, plain * weights["n.weight"] + weights["n.bias"], rtol=1e-12, atol=1e-14
    )


# torch 2.13.0, float64
TORCH_LAYER_NORM = {
    "y": [-1.1643418691553642, 2.814308582346271, 5.222379304668824, -0.267755427629516],
    "dx": [-2.040390983191774, 0.5587929907943545, 2.1161807466611484, -0.6345827542637266],
    "weight": [-0.9125382174867425, -0.3163720238324929, 0.18413085663780254, 2.0024452988561063],
    "bias": [0.20085634532777452, -0.08716577055331098, -0.29504807897322893, -0.23166454426909003],
}


def test_torchs_layer_norm():
    layer = LayerNorm(name="n", normalized_shape=4)
    x = np.sin(np.arange(12.0)).reshape(3, 4)
    weights = {"n.weight": np.arange(1.0, 5), "n.bias": np.arange(4.0)}
    y, backward = forward(layer, x, weights=weights)
    (dx,), gradients = backward(np.cos(np.arange(12.0)).reshape(3, 4))
    np.testing.assert_allclose(y[0], TORCH_LAYER_NORM["y"], rtol=1e-12)
    np.testing.assert_allclose(dx[1], TORCH_LAYER_NORM["dx"], rtol=1e-11)
    np.testing.assert_allclose(gradients["n.weight"], TORCH_LAYER_NORM["weight"], rtol=1e-12)
    np.testing.assert_allclose(gradients["n.bias"], TORCH_LAYER_NORM["bias"], rtol=1e-12)


def test_blocks_of_rows_change_nothing(monkeypatch):
    layer = LayerNorm(name="n", normalized_shape=6)
    x, dy = drawn(7, 3, 6), drawn(7, 3, 6, seed=1)
    y, backward = forward(layer, x)
    (dx,), gradients = backward(dy)
    monkeypatch.setattr(base, "CACHED_ELEMENTS", 4 * 6)
    again, backward = forward(layer, x)
    (dx_again,), gradients_again = backward(dy)
    np.testing.assert_allclose(again, y, rtol=1e-13)
    np.testing.assert_allclose(dx_again, dx, rtol=1e-12, atol=1e-14)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradients_again[name], gradient, rtol=1e-12)


def test_layer_norm_has_the_tensors_that_torchs_has():
    def names(**keys):
        return [p.name for p in LayerNorm(name="n", normalized_shape=6, **keys).parameters()]

    assert names() == ["n.weight", "n.bias"]
    assert names(bias=False) == ["n.weight"]
    assert names(elementwise_affine=False) == []
    layer = LayerNorm(name="n", normalized_shape=6)
    assert layer.ready_order() == ["n.weight", "n.bias"]


def test_layer_norm_costs_its_traffic():
    layer = LayerNorm(name="n", normalized_shape=8)
    moved, weights = 5 * 8 * 4, 2 * 8 * 4
    (kernel,) = layer.forward_cost([(5, 8)], 4)
    assert kernel[1:3] == (2 * moved, weights)
    assert [k[1:3] for k in layer.backward_cost([(5, 8)], 4, [True])] == [
        (3 * moved, weights),
        (2 * moved, weights),
    ]
    assert kept_nbytes(layer, [(5, 8)], 4) == moved + 2 * 5 * 4
