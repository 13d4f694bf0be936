"""Trainer: unscale, look for inf, clip, step, move the scale; each as torch does it."""

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.trainer import Trainer
from simdp.scenario import checked
from simdp.workload.precision import rounded
from simdp.workload.schedules.base import Progress

SGD = {"kind": "sgd", "lr": 1.0}
ADAM = {"kind": "adam", "lr": 0.1}
SCALED = {"kind": "amp", "init_scale": 8, "growth_interval": 2}


def trainer(world_size=1, start=None, **workload):
    """A trainer of one weight of shape (2, 2), on ranks that start alike."""
    raw = {
        "cluster": {
            "world_size": world_size,
            "device": "a100-sxm4-80gb",
            "topology": "ring",
            "link": {"alpha": "1 us", "bandwidth": "1 GB/s"},
        },
        "workload": {
            "model": {"kind": "mlp", "widths": [2, 2], "bias": False},
            "dataset": {"kind": "regression", "num_samples": 8},
            "optimizer": SGD,
            "microbatch": 1,
            **workload,
        },
    }
    chosen = checked(raw, Path())
    first = np.zeros((2, 2)) if start is None else np.array(start)
    ranks = [{NAME: first.astype(chosen.workload.dtype)} for _ in range(world_size)]
    return Trainer(chosen, ranks)


NAME = "layers.0.weight"


def update(made, *gradients, step=1, active=None):
    """Let every rank take a step, and return what each did."""
    arrays = [{NAME: np.array(g, dtype=made.weights[0][NAME].dtype)} for g in gradients]
    return made.update(arrays, Progress(step), active or [True] * len(gradients))


def weight(made, rank=0):
    return made.weights[rank][NAME].tolist()


GRADIENT = [[3.0, 0.0], [0.0, 4.0]]


# Clipping ----------------------------------------------------------------------------------------


def test_a_gradient_that_is_too_long_is_cut_to_the_norm_as_torch_cuts_it():
    made = trainer(clip_grad_norm=1.0, dtype="float64")
    (done,) = update(made, GRADIENT)
    # torch 2.13.0: clip_grad_norm_ multiplies by min(1, max_norm / (norm + 1e-6))
    assert done.norm == 5
    np.testing.assert_allclose(weight(made), -np.array(GRADIENT) / (5 + 1e-6), rtol=1e-15)


@for_each("limit", [5.0 + 1e-6, 6.0, 1e9])
def test_a_gradient_that_is_short_enough_is_left_as_it_is(limit):
    made = trainer(clip_grad_norm=limit, dtype="float64")
    update(made, GRADIENT)
    assert weight(made) == [[-3, 0], [0, -4]]


def test_a_gradient_of_just_the_norm_is_cut_by_torchs_epsilon():
    made = trainer(clip_grad_norm=5.0, dtype="float64")
    update(made, GRADIENT)
    np.testing.assert_allclose(weight(made), -np.array(GRADIENT) * 5 / (5 + 1e-6), rtol=1e-15)
    assert weight(made)[0][0] != -3


@given(
    gradient=st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4),
    limit=st.floats(1e-3, 1e3),
)
def test_what_is_left_is_never_longer_than_the_limit_and_points_the_same_way(gradient, limit):
    gradient = np.array(gradient).reshape(2, 2)
    made = trainer(clip_grad_norm=limit, dtype="float64")
    (done,) = update(made, gradient)
    norm = np.linalg.norm(gradient)
    assert done.norm == pytest.approx(norm, rel=1e-12)
    factor = min(1.0, limit / (norm + 1e-6))
    np.testing.assert_allclose(weight(made), -gradient * factor, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(weight(made)) <= limit * (1 + 1e-12)


def test_the_norm_is_over_all_parameters_of_a_rank_and_of_each_rank_alone():
    made = trainer(world_size=2, clip_grad_norm=1.0, dtype="float64")
    first, second = update(made, GRADIENT, [[0.0, 0.5], [0.0, 0.0]])
    assert (first.norm, second.norm) == (5, 0.5)
    assert weight(made, 1) == [[0, -0.5], [0, 0]]


def test_without_clipping_the_norm_is_still_told():
    assert update(trainer(), GRADIENT)[0] == (5, False)


# The loss scale ----------------------------------------------------------------------------------


def test_gradients_are_unscaled_before_their_norm_is_taken_and_they_are_clipped():
    made = trainer(precision=SCALED, clip_grad_norm=1.0)
    assert made.loss_scale(0) == 8
    (done,) = update(made, 8 * np.array(GRADIENT))
    assert done == (5, False)
    np.testing.assert_allclose(weight(made), -np.array(GRADIENT) / (5 + 1e-6), rtol=1e-6)


@for_each("bad", [inf, -inf, nan])
def test_a_gradient_that_is_not_finite_skips_the_step_and_halves_the_scale(bad):
    made = trainer(precision=SCALED)
    (done,) = update(made, [[1.0, bad], [0.0, 0.0]])
    assert done.skipped
    assert not np.isfinite(done.norm)
    assert weight(made) == [[0, 0], [0, 0]]
    assert made.loss_scale(0) == 4


def test_finite_gradients_whose_norm_overflows_are_no_reason_to_skip():
    made = trainer(precision={**SCALED, "init_scale": 1}, dtype="float32")
    large = 3e38
    (done,) = update(made, [[large, large], [0.0, 0.0]])
    assert not done.skipped


def test_the_scale_grows_after_so_many_good_steps_in_a_row():
    made = trainer(precision=SCALED)
    scales = []
    for bad in (0, 0, 1, 0, 1, 0, 0):
        update(made, [[inf if bad else 1.0, 0.0], [0.0, 0.0]])
        scales.append(made.loss_scale(0))
    assert scales == [8, 16, 8, 8, 4, 4, 8]


def test_without_a_loss_scale_nothing_is_skipped():
    made = trainer()
    assert made.loss_scale(0) == 1
    (done,) = update(made, [[inf, 0.0], [0.0, 0.0]])
    assert not done.skipped
    assert weight(made)[0][0] == -inf


def test_a_skipped_step_is_none_for_adam():
    """Its t counts the steps that were taken: the next one is as if the skipped had not been."""
    skipping, plain = (trainer(precision=SCALED, optimizer=ADAM) for _ in range(2))
    bad = [[inf, 0.0], [0.0, 0.0]]
    for step, gradient in enumerate((GRADIENT, bad, GRADIENT, bad, bad, GRADIENT), 1):
        scale = skipping.loss_scale(0)
        update(skipping, scale * np.array(gradient), step=step)
    for step in (1, 2, 3):
        update(plain, plain.loss_scale(0) * np.array(GRADIENT), step=step)
    assert weight(skipping) == weight(plain)
    # Equal gradients: each of Adam's steps is lr long, but for the rounding of its epsilon.
    np.testing.assert_allclose(weight(plain), [[-0.3, 0], [0, -0.3]], rtol=1e-5)


def test_the_learning_rate_follows_the_step_also_after_a_skipped_one():
    schedule = {"kind": "step_lr", "step_size": 1, "gamma": 0.5}
    made = trainer(precision={**SCALED, "init_scale": 1}, lr_schedule=schedule)
    update(made, [[inf, 0.0], [0.0, 0.0]], step=1)
    update(made, made.loss_scale(0) * np.array(GRADIENT), step=2)
    np.testing.assert_array_equal(weight(made), -0.5 * np.array(GRADIENT))


# Ranks and parameters that take no part ----------------------------------------------------------


def test_ranks_that_are_not_active_stay_as_they_are():
    made = trainer(world_size=3)
    done = update(made, GRADIENT, GRADIENT, GRADIENT, active=[True, False, True])
    assert [d is None for d in done] == [False, True, False]
    assert weight(made, 1) == [[0, 0], [0, 0]]
    assert weight(made, 0) == weight(made, 2) == [[-3, 0], [0, -4]]


def test_a_parameter_without_a_gradient_stays_as_it_is():
    made = trainer(optimizer={**SGD, "weight_decay": 0.1}, start=[[1.0, 1.0], [1.0, 1.0]])
    (done,) = made.update([{}], Progress(1), [True])
    assert done.norm == 0
    assert weight(made) == [[1, 1], [1, 1]]


# Master weights ----------------------------------------------------------------------------------


def test_updates_too_small_for_16_bits_add_up_in_the_master_weights():
    tiny = 2.0**-13  # half a float16 step at 1
    made = trainer(precision={"kind": "mixed", "init_scale": 1}, start=[[1.0, 1.0], [1.0, 1.0]])
    assert made.stored == "float16"
    seen = []
    for step in range(1, 9):
        update(made, [[-tiny, 0.0], [0.0, 0.0]], step=step)
        seen.append(weight(made)[0][0])
    assert seen == [
        float(rounded(np.float32(1 + k * tiny)[None], "float16")[0]) for k in range(1, 9)
    ]
    assert seen[0] == 1
    assert seen[-1] == 1 + 8 * tiny
    assert made.weights[0][NAME].dtype == np.float32


def test_weights_that_are_broadcast_take_their_master_along():
    made = trainer(world_size=2, precision={"kind": "mixed", "init_scale": 1})
    update(made, GRADIENT, [[1 + 2.0**-20, 0.0], [0.0, 0.0]], active=[True, True])
    made.weights[0][NAME][...] = made.weights[1][NAME]
    made.follow(1, [NAME])
    tiny = 2.0**-20
    update(made, [[-tiny, 0.0], [0.0, 0.0]], [[-tiny, 0.0], [0.0, 0.0]], step=2)
    assert weight(made, 0) == weight(made, 1)
    update(made, *[[[-1.0, 0.0], [0.0, 0.0]]] * 2, step=3)
    assert weight(made, 0) == weight(made, 1) == [[0, 0], [0, 0]]
