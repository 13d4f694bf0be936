"""Batch norm against its formula, differences and torch's figures; SyncBatchNorm against both."""

import numpy as np
import pytest
from for_each import for_each
from hypothesis import example, given
from hypothesis import strategies as st
from layer_checks import buffers_of, differences, kept_nbytes, other_memory

from simdp.errors import ScenarioError
from simdp.workload.layers import base
from simdp.workload.layers.base import Kernel, Pass, ShapeError
from simdp.workload.layers.batchnorm import BatchNorm1d, BatchNorm2d, SyncBatchNorm


def weights_of(layer, dtype="float64"):
    random = np.random.default_rng(0)
    return {p.name: random.standard_normal(p.shape).astype(dtype) for p in layer.parameters()}


def new_run(layer, weights=None, dtype="float64"):
    weights = weights_of(layer, dtype) if weights is None else weights
    return Pass(weights, buffers=buffers_of(layer, dtype))


def normalised(x, weights, eps):
    """The formula, with the channels along axis 1."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    y = (x - mean) / np.sqrt(variance + eps)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return y * weights["b.weight"].reshape(shape) + weights["b.bias"].reshape(shape)


images = st.tuples(st.integers(2, 9), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))


@given(
    images,
    st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 3, 2)]),
    st.sampled_from([1e-5, 0.1]),
)
def test_batch_norm_is_its_formula_in_any_order_of_memory(shape, order, eps):
    layer = BatchNorm2d(name="b", num_features=shape[1], eps=eps)
    x = 3 + 2 * np.random.default_rng(1).standard_normal(shape)
    run = new_run(layer)
    y, _ = layer.forward(run, other_memory(x, order))
    np.testing.assert_allclose(y, normalised(x, run.parameters, eps), rtol=1e-11, atol=1e-11)
    count = x.size // shape[1]
    flat = np.moveaxis(x, 1, 0).reshape(shape[1], -1)
    buffers = run.buffers
    np.testing.assert_allclose(buffers["b.running_mean"], 0.1 * flat.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(
        buffers["b.running_var"], 0.9 + 0.1 * flat.var(axis=1) * count / (count - 1), rtol=1e-12
    )
    assert buffers["b.num_batches_tracked"] == 1


@pytest.mark.slow
@given(images, st.booleans())
@example((2, 1, 1, 1), True)
def test_gradients_equal_differences(shape, affine):
    layer = BatchNorm2d(name="b", num_features=shape[1], affine=affine, eps=0.1)
    x = np.random.default_rng(1).standard_normal(shape)
    dy = np.random.default_rng(2).standard_normal(shape)
    weights = weights_of(layer)
    run = new_run(layer, weights)
    _, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, dy, [True])

    def total():
        return float((layer.forward(new_run(layer, weights), x)[0] * dy).sum())

    few = np.s_[:2, :2, :2, :2]
    np.testing.assert_allclose(dx[few], some_differences(total, x, few), rtol=1e-5, atol=1e-7)
    for name, gradient in run.gradients.items():
        wanted = differences(total, weights[name])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-7)


def some_differences(function, at, where, step=1e-6):
    """Central differences by those elements of an array only."""
    chosen = at[where]
    return differences(function, chosen, step)  # a view: moving it moves the array


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("lanes", "elements"), [(1, 1), (8, 30), (512, 2**15)])
def test_rows_and_blocks_of_any_size_give_the_same(order, lanes, elements, monkeypatch):
    monkeypatch.setattr(base, "LANES", lanes)
    monkeypatch.setattr(base, "CACHED_ELEMENTS", elements)
    layer = BatchNorm1d(name="b", num_features=5)
    x = np.random.default_rng(1).standard_normal((37, 5))
    run = new_run(layer)
    y, _ = layer.forward(run, other_memory(x, order))
    np.testing.assert_allclose(y, normalised(x, run.parameters, 1e-5), rtol=1e-12, atol=1e-12)


def test_positions_of_a_sequence_count_as_samples():
    layer = BatchNorm1d(name="b", num_features=3)
    x = np.random.default_rng(1).standard_normal((4, 3, 5))
    run = new_run(layer)
    y, _ = layer.forward(run, x)
    np.testing.assert_allclose(y, normalised(x, run.parameters, 1e-5), rtol=1e-12)


# torch 2.13.0 ------------------------------------------------------------------------------------


def test_the_figures_of_torch():
    layer = BatchNorm2d(name="b", num_features=2, eps=1e-3, momentum=0.3)
    run = new_run(layer, {"b.weight": np.array([2.0, -1.0]), "b.bias": np.array([0.5, 1.0])})
    x = (np.arange(12.0) ** 2).reshape(3, 2, 1, 2)
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, np.arange(12.0).reshape(y.shape) % 5, [True])
    wanted = [
        [[-1.5204402234847096, -1.4556132644424196], [2.1242763733795234, 2.009943182866351]],
        [[-0.4832088788080673, 0.10023375257254404], [1.3925439540952231, 1.0952776587609763]],
        [[2.6284851552218598, 3.7305434589407924], [-0.07092088447337677, -0.5511202846286987]],
    ]
    np.testing.assert_allclose(y[:, :, 0], wanted, rtol=1e-13)
    wanted = [
        [
            [-0.05641930197129184, 0.0060578832919623215],
            [0.0070354446695320115, -0.017709372794544653],
        ],
        [[0.16529215373329287, -0.11516364644719167], [0.01788173485893572, -0.009868169583448612]],
        [
            [-0.012323946702724955, 0.012556858095953305],
            [0.01670767713510876, -0.01404731428558324],
        ],
    ]
    np.testing.assert_allclose(dx[:, :, 0], wanted, rtol=1e-11)
    np.testing.assert_allclose(
        run.gradients["b.weight"], [6.70959026087703, -4.310361282346579], rtol=1e-13
    )
    np.testing.assert_allclose(run.gradients["b.bias"], [12, 9], rtol=1e-13)
    np.testing.assert_allclose(run.buffers["b.running_mean"], [9.35, 15.95], rtol=1e-13)
    np.testing.assert_allclose(run.buffers["b.running_var"], [343.35, 689.19], rtol=1e-13)


def test_without_momentum_the_statistics_are_means_over_all_batches():
    layer = BatchNorm1d(name="b", num_features=1, momentum=None)
    run = new_run(layer)
    found = []
    for batch in ([1.0, 3.0], [2.0, 8.0], [0.0, 1.0]):
        layer.forward(run, np.array(batch)[:, None])
        found.append((run.buffers["b.running_mean"][0], run.buffers["b.running_var"][0]))
    np.testing.assert_allclose(found, [(2, 2), (3.5, 10), (2.5, 6.833333333333335)], rtol=1e-14)
    assert run.buffers["b.num_batches_tracked"] == 3


def test_a_batch_norm_that_tracks_nothing_has_no_buffers():
    layer = BatchNorm1d(name="b", num_features=2, track_running_stats=False, affine=False)
    run = new_run(layer)
    y, _ = layer.forward(run, np.array([[1.0, 2.0], [3.0, 8.0]]))
    assert (layer.parameters(), layer.buffers(), run.buffers) == ([], [], {})
    np.testing.assert_allclose(y, [[-1, -1], [1, 1]], rtol=1e-5)


# float32 -----------------------------------------------------------------------------------------


@for_each("kind", [BatchNorm2d, SyncBatchNorm])
def test_float32_stays_float32(kind):
    layer = kind(name="b", num_features=3)
    run = new_run(layer, dtype="float32")
    x = np.random.default_rng(1).standard_normal((4, 3, 5, 5)).astype("float32")
    y, saved = layer.forward(run, x)
    (dx,) = layer.backward(run, saved, x, [True])
    arrays = [y, dx, *run.gradients.values()]
    arrays += [buffer for name, buffer in run.buffers.items() if "num_batches" not in name]
    assert {array.dtype for array in arrays} == {np.dtype("float32")}
    assert run.buffers["b.num_batches_tracked"].dtype == np.int64


def test_values_far_from_zero_are_normalised_as_well_as_float32_can():
    """The mean is subtracted before anything is squared, and sums are kept in float64."""
    x = np.random.default_rng(1).standard_normal((32, 2, 64, 64)) + 1000
    layer = BatchNorm2d(name="b", num_features=2, affine=False)
    run = new_run(layer, dtype="float32")
    y, _ = layer.forward(run, x.astype("float32"))
    exact = x.astype("float32").astype("float64")
    wanted = (exact - exact.mean(axis=(0, 2, 3), keepdims=True)) / np.sqrt(
        exact.var(axis=(0, 2, 3), keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(y, wanted, atol=2e-4)  # half a unit in the last place of 1000
    np.testing.assert_allclose(
        run.buffers["b.running_mean"], 0.1 * exact.mean(axis=(0, 2, 3)), rtol=3e-7
    )


# Batches of one value and of none ----------------------------------------------------------------


def test_one_value_per_channel_is_refused_as_torch_does():
    layer = BatchNorm1d(name="bn1", num_features=2)
    with pytest.raises(ScenarioError) as caught:
        layer.forward(new_run(layer), np.ones((1, 2)))
    assert caught.value.problems == [
        "bn1: normalises over one value per channel, which gives 0; raise microbatch, "
        "or write drop_last: true if only the last batch is so small."
    ]


def test_a_rank_without_samples_leaves_its_statistics_alone():
    layer = BatchNorm2d(name="b", num_features=2)
    run = new_run(layer)
    y, saved = layer.forward(run, np.zeros((0, 2, 3, 3)))
    (dx,) = layer.backward(run, saved, y, [True])
    assert y.shape == dx.shape == (0, 2, 3, 3)
    assert run.buffers["b.num_batches_tracked"] == 0
    assert run.buffers["b.running_var"].tolist() == [1, 1]
    assert {name: g.tolist() for name, g in run.gradients.items()} == {
        "b.weight": [0, 0],
        "b.bias": [0, 0],
    }


# SyncBatchNorm -----------------------------------------------------------------------------------


def together(layer, weights, parts, slopes, dtype="float64"):
    """Drive the exchanges of several ranks by hand."""
    runs = [new_run(layer, weights, dtype) for _ in parts]
    forward = [layer.exchanged_forward(run, x) for run, x in zip(runs, parts, strict=True)]
    rows = np.stack([next(exchange) for exchange in forward])
    assert rows.dtype == dtype
    assert rows.shape[1] == layer.exchanged_elements()[0]
    outputs, kept = zip(*[answered(exchange, rows) for exchange in forward], strict=True)
    backward = [
        layer.exchanged_backward(run, saved, dy, [True])
        for run, saved, dy in zip(runs, kept, slopes, strict=True)
    ]
    sums = np.stack([next(exchange) for exchange in backward])
    assert sums.dtype == dtype
    assert sums.shape[1] == layer.exchanged_elements()[1]
    inputs = [answered(exchange, sums.sum(axis=0))[0] for exchange in backward]
    return outputs, inputs, runs


def answered(exchange, answer):
    with pytest.raises(StopIteration) as stop:
        exchange.send(answer)
    return stop.value.value


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.booleans())
@example([3, 0, 1], True)
@example([0, 2], False)
@example([0, 0], True)
def test_sync_batch_norm_over_ranks_is_batch_norm_over_their_samples(counts, affine):
    random = np.random.default_rng(1)
    parts = [random.standard_normal((n, 3, 2, 2)) + rank for rank, n in enumerate(counts)]
    slopes = [random.standard_normal(part.shape) for part in parts]
    settings = {"name": "b", "num_features": 3, "affine": affine, "eps": 0.01}
    sync, plain = SyncBatchNorm(**settings), BatchNorm2d(**settings)
    weights = weights_of(plain)
    outputs, inputs, runs = together(sync, weights, parts, slopes)
    run = new_run(plain, weights)
    y, saved = plain.forward(run, np.concatenate(parts))
    (dx,) = plain.backward(run, saved, np.concatenate(slopes), [True])
    np.testing.assert_allclose(np.concatenate(outputs), y, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(np.concatenate(inputs), dx, rtol=1e-11, atol=1e-12)
    for name, gradient in run.gradients.items():  # each rank has its share, as in torch
        shares = sum(own.gradients[name] for own in runs)
        np.testing.assert_allclose(shares, gradient, rtol=1e-11, atol=1e-11)
    for own in runs:
        for name, buffer in run.buffers.items():
            np.testing.assert_allclose(own.buffers[name], buffer, rtol=1e-12)


def test_ranks_exchange_float32_in_float32():
    random = np.random.default_rng(1)
    parts = [random.standard_normal((n, 3)).astype("float32") for n in (4, 0, 2)]
    layer = SyncBatchNorm(name="b", num_features=3)
    outputs, inputs, _ = together(layer, weights_of(layer, "float32"), parts, parts, "float32")
    assert {array.dtype for array in (*outputs, *inputs)} == {np.dtype("float32")}
    wanted = normalised(np.concatenate(parts), weights_of(layer), 1e-5)
    np.testing.assert_allclose(np.concatenate(outputs), wanted, rtol=1e-4, atol=1e-5)


def test_one_rank_alone_hears_itself():
    x = np.random.default_rng(1).standard_normal((4, 3, 2, 2))
    found = []
    for kind in (SyncBatchNorm, BatchNorm2d):
        layer = kind(name="b", num_features=3)
        run = new_run(layer)
        y, saved = layer.forward(run, x)
        found.append((y, *layer.backward(run, saved, x, [True])))
    for sync, plain in zip(*found, strict=True):
        np.testing.assert_allclose(sync, plain, rtol=1e-12, atol=1e-12)


# Costs and shapes --------------------------------------------------------------------------------


@for_each("kind", [BatchNorm2d, SyncBatchNorm])
def test_batch_norm_reads_its_input_twice(kind):
    layer, size = kind(name="b", num_features=3), 3 * 5 * 5
    assert layer.forward_cost([(3, 5, 5)], 4) == [
        Kernel(4 * size, 4 * size),
        Kernel(4 * size, 4 * 2 * size),
    ]
    sums = Kernel(4 * size, 4 * 2 * size)
    assert layer.backward_cost([(3, 5, 5)], 4, [True]) == [sums, Kernel(5 * size, 4 * 3 * size)]
    assert layer.backward_cost([(3, 5, 5)], 4, [False]) == [sums]
    assert kept_nbytes(layer, [(3, 5, 5)], 4) == 4 * size
    assert layer.ready_order() == ["b.weight", "b.bias"]  # torch 2.13.0, hooks on the parameters


@for_each("shape", [(), (4,), (4, 3)])
def test_other_numbers_of_channels_are_refused(shape):
    with pytest.raises(ShapeError, match="takes 3 channels, but gets samples of shape"):
        BatchNorm1d(name="b", num_features=3).output_shape(shape)
