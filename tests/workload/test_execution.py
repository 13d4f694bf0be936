"""Forward and backward of whole graphs: forks, several outputs, dead ends, and 16 bits."""

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from layer_checks import buffers_of, differences
from small_layers import Product, Scale, ScaleIn32, Sum

from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.base import GraphBuilder, Pass
from simdp.workload.layers.batchnorm import BatchNorm1d, SyncBatchNorm
from simdp.workload.precision import Amp, Full, Mixed, rounded

FULL = Full()


def scale(name):
    return Scale(name=name, tensor=name)


def play(script):
    """Run a generator that never yields, and return its value."""
    with pytest.raises(StopIteration) as stop:
        next(script)
    return stop.value.value


def run_through(graph, weights, inputs, slopes=None, precision=FULL, dtype="float64"):
    """Outputs and gradients of a graph; every slope is 1 unless given."""
    executor = GraphExecutor(graph, call_dtypes(graph, precision, dtype), dtype)
    run = Pass({name: np.asarray(value, dtype=dtype) for name, value in weights.items()})
    outputs, kept = play(executor.forward(run, inputs))
    if slopes is None:
        slopes = [np.ones_like(output) for output in outputs]
    play(executor.backward(run, kept, slopes))
    assert kept == []
    return outputs, run.gradients


# Forks and joins ---------------------------------------------------------------------------------


def test_a_value_with_two_readers_gets_the_sum_of_their_gradients():
    graph = GraphBuilder("x")
    h = graph.call(scale("a"), graph.input("x"))
    left, right = graph.call(scale("b"), h), graph.call(scale("c"), h)
    built = graph.build(graph.call(Sum(name="s"), left, right))
    x = np.array([[1.0], [10.0]])
    (y,), gradients = run_through(built, {"a": 2, "b": 3, "c": 5}, [x])
    np.testing.assert_array_equal(y, 2 * (3 + 5) * x)
    assert gradients == {"a": (3 + 5) * 11, "b": 2 * 11, "c": 2 * 11}


def test_a_layer_may_read_one_value_twice():
    graph = GraphBuilder("x")
    h = graph.call(scale("a"), graph.input("x"))
    built = graph.build(graph.call(Product(name="square"), h, h))
    (y,), gradients = run_through(built, {"a": 3}, [np.array([[2.0]])])
    assert y == 36
    assert gradients == {"a": 2 * 3 * 2 * 2}


def test_slopes_are_left_as_they_are_where_layers_hand_them_on():
    graph = GraphBuilder("x")
    h = graph.call(scale("a"), graph.input("x"))
    s = graph.call(Sum(name="s"), h, h, h)
    slope = np.array([[1.0]])
    _, gradients = run_through(graph.build(s), {"a": 3}, [np.array([[2.0]])], [slope])
    assert slope == 1
    assert gradients == {"a": 3 * 2}


LAYERS = ("scale", "shared", "sum", "product")


@st.composite
def graphs(draw):
    """Any small graph: layers read any earlier values; the last value and others are outputs."""
    graph = GraphBuilder("x", "z")
    values = [graph.input("x"), graph.input("z")]
    for number in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(LAYERS))
        pick = st.sampled_from(values)
        if kind in ("scale", "shared"):
            tensor = "shared" if kind == "shared" else f"w{number}"
            layer, inputs = Scale(name=f"l{number}", tensor=tensor), [draw(pick)]
        elif kind == "sum":
            layer = Sum(name=f"l{number}")
            inputs = draw(st.lists(pick, min_size=1, max_size=3))
        else:
            layer, inputs = Product(name=f"l{number}"), [draw(pick), draw(pick)]
        values.append(graph.call(layer, *inputs))
    more = draw(st.lists(st.sampled_from(values[2:]), max_size=2, unique=True))
    return graph.build(values[-1], *((value, 0.5) for value in more if value != values[-1]))


@given(graphs())
def test_gradients_of_any_graph_equal_differences(graph):
    random = np.random.default_rng(0)
    weights = {p.name: random.uniform(0.5, 1.5, ()) for p in graph.parameters}
    inputs = [random.uniform(0.5, 1.5, (2, 1)) for _ in graph.inputs]
    slopes = [random.standard_normal((2, 1)) for _ in graph.outputs]

    def total():
        outputs, _ = run_through(graph, weights, inputs, slopes)
        return float(sum((y * slope).sum() for y, slope in zip(outputs, slopes, strict=True)))

    _, gradients = run_through(graph, weights, inputs, slopes)
    assert set(gradients) <= set(graph.ready_order)
    for name, weight in weights.items():
        wanted = differences(total, weight)
        np.testing.assert_allclose(gradients.get(name, 0.0), wanted, rtol=1e-5, atol=1e-6)


# Several outputs, and none -----------------------------------------------------------------------


def test_auxiliary_outputs_come_in_order_and_their_gradients_add():
    graph = GraphBuilder("x")
    h = graph.call(scale("a"), graph.input("x"))
    side = graph.call(scale("side"), h)
    end = graph.call(scale("b"), h)
    built = graph.build(end, (side, 0.3), (h, 0.1))
    x = np.array([[1.0]])
    outputs, gradients = run_through(
        built, {"a": 2, "b": 3, "side": 5}, [x], [np.array([[s]]) for s in (1.0, 0.3, 0.1)]
    )
    assert [float(y[0, 0]) for y in outputs] == [6, 10, 2]
    assert gradients["a"] == pytest.approx(3 + 0.3 * 5 + 0.1)
    assert gradients["side"] == pytest.approx(0.3 * 2)


def test_a_layer_that_the_loss_does_not_see_gets_no_gradient_and_stops_nobody():
    graph = GraphBuilder("x")
    h = graph.call(scale("a"), graph.input("x"))
    y = graph.call(scale("b"), h)
    graph.call(scale("dead end"), h)
    weights = {"a": 2, "b": 3, "dead end": 5}
    _, gradients = run_through(graph.build(y), weights, [np.array([[1.0]])])
    assert gradients == {"a": 3, "b": 2}


def test_a_second_pass_adds_to_the_gradients_of_the_first():
    graph = GraphBuilder("x")
    built = graph.build(graph.call(scale("a"), graph.input("x")))
    executor = GraphExecutor(built, ["float64"], "float64")
    run = Pass({"a": np.array(2.0)})
    for x in (1.0, 10.0):
        outputs, kept = play(executor.forward(run, [np.array([[x]])]))
        play(executor.backward(run, kept, [np.ones_like(outputs[0])]))
    assert run.gradients == {"a": 11}


# 16 bits -----------------------------------------------------------------------------------------

LOW = {"float16": 0.1 + 2**-14, "bfloat16": 0.1 + 2**-11}
"""Numbers that float32 has and the 16-bit dtype has not."""


def two_layers():
    """One layer that autocast runs in 16 bits, and one that it leaves in 32."""
    graph = GraphBuilder("x")
    h = graph.call(scale("low"), graph.input("x"))
    return graph.build(graph.call(ScaleIn32(name="full", tensor="full"), h))


def test_dtypes_follow_what_autocast_does_with_each_layer():
    graph = GraphBuilder("x")
    x = graph.input("x")
    low = graph.call(scale("low"), x)
    promoted = graph.call(Sum(name="s"), low, low)
    full = graph.call(ScaleIn32(name="full", tensor="full"), promoted)
    mixed = graph.call(Sum(name="t"), full, low)
    graph.call(Sum(name="u"), x)
    built = graph.build(mixed)
    half = "float16"
    assert call_dtypes(built, Full(), "float64") == ("float64",) * 5
    assert call_dtypes(built, Amp(), "float32") == (half, half, "float32", "float32", "float32")
    assert call_dtypes(built, Mixed(dtype="bfloat16"), "float32") == ("bfloat16",) * 5


@for_each("low", LOW)
def test_autocast_rounds_what_goes_in_and_out_of_a_layer_of_16_bits_and_nothing_else(low):
    def cut(value):
        return rounded(np.asarray(value, dtype=np.float32), low)

    x = np.array([[LOW[low]], [3 * LOW[low]]], dtype=np.float32)
    weights = {"low": np.float32(1.1), "full": np.float32(1.3)}
    slope = np.array([[0.7], [0.9]], dtype=np.float32)
    (y,), gradients = run_through(
        two_layers(), weights, [x], [slope], Amp(dtype=low), dtype="float32"
    )
    h = cut(cut(x) * cut(weights["low"]))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, h * weights["full"])
    assert not np.array_equal(h, x * weights["low"])
    below = cut(slope * weights["full"])
    np.testing.assert_array_equal(gradients["low"], cut((below * cut(x)).sum()))
    np.testing.assert_array_equal(gradients["full"], (slope * h).sum(dtype=np.float32))
    assert {g.dtype for g in gradients.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(x, np.array([[LOW[low]], [3 * LOW[low]]], dtype=np.float32))


def test_full_precision_rounds_nothing():
    x = np.array([[LOW["float16"]]], dtype=np.float32)
    weights = {"low": np.float32(1.1), "full": np.float32(1.3)}
    (y,), _ = run_through(two_layers(), weights, [x], dtype="float32")
    np.testing.assert_array_equal(y, x * weights["low"] * weights["full"])


def test_with_mixed_precision_every_layer_is_rounded():
    x = np.array([[LOW["float16"]]], dtype=np.float32)
    weights = {"low": np.float32(1.1), "full": np.float32(1.3)}
    (y,), gradients = run_through(two_layers(), weights, [x], precision=Mixed(), dtype="float32")
    for array in (y, *gradients.values()):
        np.testing.assert_array_equal(array, rounded(array, "float16"))


def test_values_beyond_16_bits_become_infinite():
    x = np.array([[300.0]], dtype=np.float32)
    (y,), _ = run_through(
        two_layers(), {"low": 300.0, "full": 1.0}, [x], precision=Amp(), dtype="float32"
    )
    assert np.isposinf(y).all()


# Layers whose ranks talk -------------------------------------------------------------------------


def test_ranks_that_exchange_statistics_equal_one_rank_with_all_samples():
    random = np.random.default_rng(0)
    x, slope = random.standard_normal((2, 7, 3))
    cuts = [slice(0, 2), slice(2, 7)]
    weights = {"bn.weight": random.standard_normal(3), "bn.bias": random.standard_normal(3)}
    layers = [member(name="bn", num_features=3) for member in (BatchNorm1d, SyncBatchNorm)]
    built = []
    for layer in layers:
        graph = GraphBuilder("x")
        h = graph.call(layer, graph.call(scale("a"), graph.input("x")))
        built.append(GraphExecutor(graph.build(h), ["float64"] * 2, "float64"))
    weights["a"] = np.array(1.5)

    alone = Pass(weights, buffers=buffers_of(layers[0]))
    (whole,), kept = play(built[0].forward(alone, [x]))
    play(built[0].backward(alone, kept, [slope]))

    runs = [Pass(weights, buffers=buffers_of(layers[1])) for _ in cuts]
    scripts = [built[1].forward(run, [x[cut]]) for run, cut in zip(runs, cuts, strict=True)]
    rows = np.stack([next(script) for script in scripts])
    assert rows.shape == (2, layers[1].exchanged_elements()[0])
    ends = [ended(script, rows) for script in scripts]
    np.testing.assert_allclose(np.concatenate([y for (y,), _ in ends]), whole, rtol=1e-12)
    scripts = [
        built[1].backward(run, kept, [slope[cut]])
        for run, (_, kept), cut in zip(runs, ends, cuts, strict=True)
    ]
    parts = [next(script) for script in scripts]
    assert parts[0].shape == (layers[1].exchanged_elements()[1],)
    for script in scripts:
        ended(script, parts[0] + parts[1])
    for name, wanted in alone.gradients.items():
        total = runs[0].gradients[name] + runs[1].gradients[name]
        np.testing.assert_allclose(total, wanted, rtol=1e-10, atol=1e-12, err_msg=name)
    for run in runs:
        for name, wanted in alone.buffers.items():
            np.testing.assert_allclose(run.buffers[name], wanted, rtol=1e-12, err_msg=name)


def ended(script, answer):
    with pytest.raises(StopIteration) as stop:
        script.send(answer)
    return stop.value.value
