"""Activations: their values and slopes, and what they read and write."""

from math import exp, log, tanh

import numpy as np
import pytest
from for_each import for_each
from layer_checks import kept_nbytes, refusal

from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.layers.activations.rectifiers import LeakyReLU
from simdp.workload.layers.base import Kernel, Pass

every_activation = pytest.mark.parametrize("kind", ACTIVATIONS)

AT_ONE = {
    "gelu": 0.8413447460685429,
    "gelu_tanh": 0.8411919906082768,  # torch 2.13.0
    "relu": 1.0,
    "tanh": 0.7615941559557649,
}


def test_the_slope_of_relu_at_zero_is_zero():
    relu = ACTIVATIONS["relu"](name="a")
    _, saved = relu.forward(Pass({}), np.array([[-1.0, 0.0, 2.0]]))
    (dx,) = relu.backward(Pass({}), saved, np.ones((1, 3)), [True])
    assert dx.tolist() == [[0, 0, 1]]


@for_each("kind", AT_ONE)
def test_an_activation_of_one(kind):
    y, _ = ACTIVATIONS[kind](name="a").forward(Pass({}), np.array([[1.0]]))
    np.testing.assert_allclose(y, [[AT_ONE[kind]]], rtol=1e-15)


@every_activation
def test_an_activation_keeps_the_shape_and_acts_on_every_element_alone(kind):
    layer = ACTIVATIONS[kind](name="a")
    x = np.random.default_rng(0).standard_normal((3, 2, 5))
    y, _ = layer.forward(Pass({}), x)
    assert layer.output_shape((2, 5)) == (2, 5)
    for index in np.ndindex(x.shape):
        one, _ = layer.forward(Pass({}), x[index].reshape(1, 1))
        assert y[index] == pytest.approx(one[0, 0], rel=1e-14)


STEPWISE = {"quick_gelu": 3, "relu2": 2}
"""Those that transformers writes in several steps, and how many kernels that takes."""


@for_each("kind", [kind for kind in ACTIVATIONS if kind not in STEPWISE])
def test_an_activation_reads_its_input_and_writes_its_output(kind):
    layer = ACTIVATIONS[kind](name="a")
    (forward,) = layer.forward_cost([(2, 6)], 4)
    (backward,) = layer.backward_cost([(2, 6)], 4, [True])
    assert forward[1:3] == (2 * 12 * 4, 0)
    assert backward[1:3] == (3 * 12 * 4, 0)
    assert 0 < forward.flops < backward.flops
    assert isinstance(forward, Kernel)
    assert kept_nbytes(layer, [(2, 6)], 4) == 12 * 4


@every_activation
def test_an_activation_costs_nothing_backward_where_nobody_needs_it(kind):
    layer = ACTIVATIONS[kind](name="a")
    assert layer.backward_cost([(6,)], 4, [False]) == []
    y, saved = layer.forward(Pass({}), np.ones((2, 6)))
    assert layer.backward(Pass({}), saved, y, [False]) == (None,)


AT = np.array([[-2.0, 0.0, 1.5]])


TORCH = {  # torch 2.13.0: values and slopes there
    "leaky_relu": ([-0.02, 0.0, 1.5], [0.01, 0.01, 1.0]),
    "sigmoid": (
        [0.11920292202211755, 0.5, 0.8175744761936437],
        [0.1049935854035065, 0.25, 0.14914645207033286],
    ),
    "silu": (
        [-0.2384058440442351, 0.0, 1.2263617142904655],
        [-0.09078424878489547, 0.5, 1.041294154299143],
    ),
}


@for_each("kind", TORCH)
def test_values_and_slopes_are_torchs(kind):
    layer, run = ACTIVATIONS[kind](name="a"), Pass({})
    y, saved = layer.forward(run, AT)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    np.testing.assert_allclose(y[0], TORCH[kind][0], rtol=1e-14)
    np.testing.assert_allclose(dx[0], TORCH[kind][1], rtol=1e-14)


@for_each("slope", [-0.5, 0.0, 0.2, 1.0, 3.0])
def test_leaky_relu_bends_at_zero_by_any_slope(slope):
    layer, run = LeakyReLU(name="a", negative_slope=slope), Pass({})
    y, saved = layer.forward(run, AT)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    assert y.tolist() == [[-2.0 * slope, 0.0, 1.5]]
    assert dx.tolist() == [[slope, slope, 1.0]]


@for_each("dtype", ["float32", "float64"])
@for_each("kind", ["sigmoid", "silu"])
def test_far_from_zero_nothing_overflows(kind, dtype):
    """Every warning of NumPy is an error in these tests."""
    layer, run = ACTIVATIONS[kind](name="a"), Pass({})
    x = np.array([[-1e4, -200.0, 200.0, 1e4]], dtype=dtype)
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
    high = [1.0, 1.0] if kind == "sigmoid" else [200.0, 1e4]
    np.testing.assert_allclose(y[0], [0, 0, *high], atol=1e-30)
    np.testing.assert_allclose(
        dx[0], [0, 0, *([0, 0] if kind == "sigmoid" else [1, 1])], atol=1e-30
    )
    assert y.dtype == dx.dtype == dtype


def test_backward_has_kept_what_torchs_has():
    """torch 2.13.0: whether grad_fn has _saved_result or _saved_self."""
    shape, itemsize = [(3,)], 4
    of_output = [kind for kind in ACTIVATIONS if ACTIVATIONS[kind](name="a").kept(shape, 4).output]
    assert of_output == ["relu", "sigmoid", "tanh"]
    for kind in ACTIVATIONS:
        tensors = 2 if kind == "quick_gelu" else 1
        layer = ACTIVATIONS[kind](name="a")
        assert kept_nbytes(layer, shape, itemsize) == tensors * 3 * itemsize


@for_each("kind", STEPWISE)
def test_what_is_written_in_steps_takes_a_kernel_for_each(kind):
    layer = ACTIVATIONS[kind](name="a")
    assert len(layer.forward_cost([(2, 6)], 4)) == STEPWISE[kind]
    assert len(layer.backward_cost([(2, 6)], 4, [True])) >= STEPWISE[kind]
    assert not layer.kept([(2, 6)], 4).output


def test_bounds_of_hardtanh_are_in_order():
    assert refusal(kind="hardtanh", name="a", min_val=1, max_val=1) == [
        "min_val: 1.0 is not below max_val, 1.0; write less."
    ]


WRITTEN_OUT = {  # the formulas of torch's documentation, number by number
    "celu": lambda x: max(0, x) + min(0, exp(x) - 1),
    "elu": lambda x: x if x > 0 else exp(x) - 1,
    "hardsigmoid": lambda x: min(max(x + 3, 0), 6) / 6,
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hardtanh": lambda x: min(max(x, -1), 1),
    "log_sigmoid": lambda x: log(1 / (1 + exp(-x))),
    "mish": lambda x: x * tanh(log(1 + exp(x))),
    "quick_gelu": lambda x: x / (1 + exp(-1.702 * x)),
    "relu2": lambda x: max(x, 0) ** 2,
    "relu6": lambda x: min(max(0, x), 6),
    "selu": lambda x: (
        1.0507009873554804934193349852946
        * (max(0, x) + min(0, 1.6732632423543772848170429916717 * (exp(x) - 1)))
    ),
    "softplus": lambda x: log(1 + exp(x)),
}


@for_each("kind", WRITTEN_OUT)
def test_values_are_those_of_the_formulas(kind):
    x = np.array([[-7.0, -3.0, -2.0, -0.5, 0.0, 0.5, 1.5, 3.0, 7.0]])
    y, _ = ACTIVATIONS[kind](name="a").forward(Pass({}), x)
    np.testing.assert_allclose(y[0], list(map(WRITTEN_OUT[kind], x[0])), rtol=1e-12, atol=1e-15)


@every_activation
def test_large_numbers_give_finite_values_and_slopes(kind):
    layer, run = ACTIVATIONS[kind](name="a"), Pass({})
    for dtype in ("float32", "float64"):
        x = np.array([[-1e4, -200.0, 200.0, 1e4]], dtype=dtype)
        y, saved = layer.forward(run, x)
        (dx,) = layer.backward(run, saved, np.ones_like(y), [True])
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()
        assert y.dtype == dx.dtype == dtype


def test_options_bend_as_torchs():
    run, x = Pass({}), np.array([[-2.0, 0.5, 30.0]])

    def value(kind, **options):
        return ACTIVATIONS[kind](name="a", **options).forward(run, x)[0][0]

    np.testing.assert_allclose(value("elu", alpha=2.0), [2 * (exp(-2) - 1), 0.5, 30])
    np.testing.assert_allclose(value("celu", alpha=2.0), [2 * (exp(-1) - 1), 0.5, 30])
    np.testing.assert_allclose(
        value("softplus", beta=2.0, threshold=50.0), [log(1 + exp(-4)) / 2, log(1 + exp(1)) / 2, 30]
    )
    assert value("hardtanh", min_val=-1.5, max_val=2.5).tolist() == [-1.5, 0.5, 2.5]
