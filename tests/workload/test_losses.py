"""Every loss: gradients equal differences, the mean is over what counts, targets are checked."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from simdp.workload.losses import LOSSES, AnyLoss
from simdp.workload.losses.cross_entropy import CrossEntropy
from simdp.workload.losses.mse import MSE

RANDOM = np.random.default_rng(0)
CASES = {
    "mse": (MSE(), (5, 3), RANDOM.standard_normal((5, 3))),
    "mse of grids": (MSE(), (5, 2, 3), RANDOM.standard_normal((5, 2, 3))),
    "mse of numbers": (MSE(), (5,), RANDOM.standard_normal(5)),
    "cross entropy": (CrossEntropy(), (5, 3), np.array([0, 2, 1, 1, 0])),
    "cross entropy of positions": (CrossEntropy(), (2, 4, 3), RANDOM.integers(3, size=(2, 4))),
    "cross entropy with gaps": (CrossEntropy(), (5, 3), np.array([0, -100, 1, -100, 2])),
    "cross entropy that ignores a class": (
        CrossEntropy(ignore_index=1),
        (5, 3),
        np.array([0, 1, 2, 1, 0]),
    ),
}

every_case = pytest.mark.parametrize(("loss", "shape", "target"), CASES.values(), ids=CASES)


def test_every_kind_of_loss_has_a_case_here():
    assert {loss.kind for loss, _, _ in CASES.values()} == set(LOSSES)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_is_written_by_its_kind(kind):
    assert type(TypeAdapter(AnyLoss).validate_python(kind)) is LOSSES[kind]


@every_case
def test_the_gradient_equals_differences(loss, shape, target):
    prediction = np.random.default_rng(1).standard_normal(shape)
    _, gradient = loss.value_and_grad(prediction, target)
    step = 1e-6
    for index in np.ndindex(shape):
        moved = [prediction.copy(), prediction.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        high, low = (loss.value_and_grad(p, target)[0] for p in moved)
        assert abs(gradient[index] - (high - low) / (2 * step)) < 1e-8


@every_case
def test_the_inputs_are_left_as_they_are(loss, shape, target):
    prediction = np.random.default_rng(1).standard_normal(shape)
    kept = prediction.copy(), target.copy()
    loss.value_and_grad(prediction, target)
    np.testing.assert_array_equal(prediction, kept[0])
    np.testing.assert_array_equal(target, kept[1])


@every_case
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_keeps_the_dtype_of_the_prediction(loss, shape, target, dtype):
    prediction = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    if target.dtype == np.float64:
        target = target.astype(dtype)
    value, gradient = loss.value_and_grad(prediction, target)
    assert isinstance(value, float)
    assert gradient.dtype == dtype
    assert gradient.shape == shape


@every_case
def test_shards_weighted_by_their_counts_give_the_whole(loss, shape, target):
    prediction = np.random.default_rng(1).standard_normal(shape)
    whole, _ = loss.value_and_grad(prediction, target)
    parts = [slice(0, 1), slice(1, None)]
    counts = [loss.count(target[part]) for part in parts]
    assert sum(counts) == loss.count(target)
    values = [loss.value_and_grad(prediction[part], target[part])[0] for part in parts]
    assert np.average(values, weights=counts) == pytest.approx(whole, rel=1e-12)


def test_the_squared_error_is_the_mean_over_every_element():
    value, gradient = MSE().value_and_grad(np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((2, 2)))
    assert value == 30 / 4
    assert gradient.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert MSE().count(np.zeros((7, 3))) == 7


def test_cross_entropy_of_equal_logits_is_the_log_of_the_classes():
    value, _ = CrossEntropy().value_and_grad(np.zeros((2, 5)), np.array([0, 4]))
    assert value == pytest.approx(np.log(5), rel=1e-15)


def test_cross_entropy_survives_large_logits():
    value, gradient = CrossEntropy().value_and_grad(np.array([[1e4, 0.0]]), np.array([1]))
    assert value == 1e4
    assert np.isfinite(gradient).all()


def test_ignored_targets_neither_count_nor_pull():
    loss, target = CrossEntropy(ignore_index=-1), np.array([0, -1, 2])
    prediction = np.random.default_rng(1).standard_normal((3, 4))
    value, gradient = loss.value_and_grad(prediction, target)
    kept, _ = loss.value_and_grad(prediction[[0, 2]], target[[0, 2]])
    assert loss.count(target) == 2
    assert value == pytest.approx(kept, rel=1e-15)
    assert not gradient[1].any()


@pytest.mark.parametrize(
    ("loss", "target", "output_shape", "message"),
    [
        (MSE(), np.zeros((4, 3)), (3,), None),
        (
            MSE(),
            np.zeros((4, 2)),
            (3,),
            "y has shape (4, 2), but the model makes (3,) of each sample; give y the shape (4, 3).",
        ),
        (
            MSE(),
            np.zeros((4, 3), int),
            (3,),
            "y is int64 or has values that are not finite; give finite floats.",
        ),
        (
            MSE(),
            np.full((4, 3), np.nan),
            (3,),
            "y is float64 or has values that are not finite; give finite floats.",
        ),
        (CrossEntropy(), np.array([0, 2]), (3,), None),
        (CrossEntropy(), np.array([0, -100]), (3,), None),
        (CrossEntropy(), np.array([-100, -100]), (3,), None),
        (CrossEntropy(), np.array([[0, 2]]), (2, 3), None),
        (
            CrossEntropy(),
            np.array([[0], [2]]),
            (3,),
            "y has shape (2, 1), but cross_entropy needs class indices (2,).",
        ),
        (
            CrossEntropy(),
            np.array([0.0, 2.0]),
            (3,),
            "y is float64, but cross_entropy needs class indices: whole numbers.",
        ),
        (
            CrossEntropy(ignore_index=-1),
            np.array([-100, 3]),
            (3,),
            "y holds labels -100 ... 3, but the model tells 3 classes apart; "
            "labels must be 0 ... 2 or ignore_index -1.",
        ),
    ],
)
def test_targets_that_do_not_fit_are_explained(loss, target, output_shape, message):
    assert loss.problem_with(target, output_shape) == message


def test_cross_entropy_explains_that_one_number_is_no_class():
    assert CrossEntropy().problem_with(np.array([0, 1]), ()) is not None
