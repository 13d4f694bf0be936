"""GroupNorm and InstanceNorm: each as the other, running statistics, what is refused."""

import numpy as np
import pytest
from layer_checks import drawn, new_pass, refusal, weights_of

from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.batchnorm import InstanceNorm1d, InstanceNorm2d
from simdp.workload.layers.normalization import GroupNorm


def test_a_group_for_each_channel_is_an_instance_norm():
    group = GroupNorm(name="n", num_groups=3, num_channels=3)
    instance = InstanceNorm2d(name="n", num_features=3, affine=True)
    weights, x, dy = weights_of(group), drawn(2, 3, 4, 5), drawn(2, 3, 4, 5, seed=1)
    found = []
    for layer in (group, instance):
        run = new_pass(layer, weights, 2)
        y, saved = layer.forward(run, x)
        found.append((y, *layer.backward(run, saved, dy, [True]), *run.gradients.values()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_running_statistics_follow_the_mean_of_all_samples():
    layer = InstanceNorm1d(name="n", num_features=2, track_running_stats=True)
    x = drawn(3, 2, 5)
    run = new_pass(layer, {}, 3)
    layer.forward(run, x)
    np.testing.assert_allclose(run.buffers["n.running_mean"], 0.1 * x.mean(axis=(0, 2)))
    wanted = 0.9 + 0.1 * x.var(axis=2, ddof=1).mean(axis=0)
    np.testing.assert_allclose(run.buffers["n.running_var"], wanted)
    assert run.buffers["n.num_batches_tracked"] == 0  # torch never counts them here
    y, _ = layer.evaluated().forward(run, x)
    mean, variance = run.buffers["n.running_mean"], run.buffers["n.running_var"]
    expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_without_running_statistics_training_and_use_are_one():
    layer = InstanceNorm2d(name="n", num_features=2)
    assert layer.evaluated() is layer
    assert layer.buffers() == []
    still = InstanceNorm2d(name="n", num_features=2, track_running_stats=True, momentum=None)
    run = new_pass(still, {}, 3)
    still.forward(run, drawn(3, 2, 4, 4))
    assert run.buffers["n.running_mean"].tolist() == [0, 0]


def test_the_evaluated_norm_keeps_nothing_and_costs_one_kernel():
    layer = InstanceNorm2d(name="n", num_features=2, affine=True, track_running_stats=True)
    after = layer.evaluated()
    assert len(layer.forward_cost([(2, 4, 4)], 4)) == 2
    assert len(after.forward_cost([(2, 4, 4)], 4)) == 1
    assert not after.kept([(2, 4, 4)], 4).inputs
    weights, x = weights_of(layer), drawn(3, 2, 4, 4)
    run = new_pass(after, weights, 3)
    weight, bias = (weights[f"n.{part}"][:, None, None] for part in ("weight", "bias"))
    np.testing.assert_allclose(
        after.forward(run, x)[0], x / np.sqrt(1 + 1e-5) * weight + bias, rtol=1e-12
    )
    assert after.output_shape((2, 4, 4)) == (2, 4, 4)


def test_what_does_not_fit_is_refused():
    assert refusal(kind="group_norm", name="n", num_groups=3, num_channels=4) == [
        "num_groups: 3 groups do not share num_channels 4 evenly; choose a divisor of it."
    ]
    with pytest.raises(ShapeError, match="takes 4 channels, but gets samples of shape"):
        GroupNorm(name="n", num_groups=2, num_channels=4).output_shape((3, 4))
    with pytest.raises(ShapeError, match="normalises over one pixel, which gives 0"):
        InstanceNorm2d(name="n", num_features=2).output_shape((2, 1, 1))
    with pytest.raises(ShapeError, match="takes images of 2 channels, but gets samples of shape"):
        InstanceNorm2d(name="n", num_features=2).output_shape((3, 4, 4))
