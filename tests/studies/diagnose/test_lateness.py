"""Lateness: what moves from rank to rank is imbalance, what stays with some is a straggler."""

import numpy as np
import pytest
from for_each import for_each

from simdp.studies.diagnose.lateness import lateness


def divided(late):
    """Divide lateness given by step and rank: all wait for the last of each step."""
    late = np.asarray(late, dtype=float)
    waits = late.max(axis=1, keepdims=True) - late
    blamed = np.zeros((*late.shape, late.shape[1]))
    for step, row in enumerate(late):
        blamed[step, :, row.argmax()] = waits[step]
    return lateness(waits, blamed)


def test_one_rank_late_in_every_step_is_a_straggler_with_all_of_the_loss():
    found = divided([[0, 0, 0.2, 0]] * 5)
    assert found.stragglers == (2,)
    assert found.straggling == pytest.approx(0.2)
    assert found.moving == pytest.approx(0.0)


def test_one_rank_late_in_some_steps_is_a_straggler_too():
    found = divided([[0, 0, 0.2 * (step % 2), 0] for step in range(10)])
    assert found.stragglers == (2,)
    assert found.straggling > found.moving


def test_all_ranks_of_a_slow_node_are_stragglers():
    found = divided([[0, 0, 0.2, 0.2 + 0.01 * (step % 2)] for step in range(6)])
    assert found.stragglers == (2, 3)
    assert found.straggling > 0.18


def test_lateness_that_goes_round_is_imbalance():
    found = divided(0.2 * np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]])
    assert found.moving == pytest.approx(0.2)
    assert found.straggling == 0
    assert set(found.others) == {0, 1, 2, 3}


@for_each(("num_ranks", "at_most"), [(2, 0.2), (4, 0.1), (16, 0.02)])
def test_jitter_is_seldom_taken_for_a_straggler(num_ranks, at_most):
    random = np.random.default_rng(3)
    wrong = [
        (found := divided(random.lognormal(0, 0.5, (10, num_ranks)))).straggling > found.moving
        for _ in range(100)
    ]
    assert np.mean(wrong) <= at_most


@for_each("num_ranks", [2, 4, 16])
def test_a_straggler_is_found_beneath_jitter(num_ranks):
    random = np.random.default_rng(4)
    for _ in range(50):
        late = random.lognormal(0, 0.05, (5, num_ranks))
        late[:, 1] += 0.5
        found = divided(late)
        assert found.stragglers == (1,)
        assert found.straggling > found.moving


def test_two_ranks_and_few_steps_do_not_tell_chance_from_a_straggler():
    """One of two ranks is the later one in all of three steps once in four."""
    doubtful = divided([[0, 0.1], [0, 0.2], [0, 0.02]])
    assert doubtful.doubtful == (1,)
    assert (doubtful.straggling, doubtful.stragglers) == (0, ())
    sure = divided([[0, 0.2], [0, 0.21], [0, 0.19]])
    assert (sure.doubtful, sure.stragglers) == ((), (1,))


@for_each("num_steps", [2, 3, 4, 6])
def test_ranks_that_take_turns_are_seldom_a_straggler_in_few_steps(num_steps):
    random = np.random.default_rng(5)
    wrong = [
        (found := divided(random.normal(0, 1, (num_steps, 2)))).straggling > found.moving
        for _ in range(200)
    ]
    assert np.mean(wrong) <= 0.1


def test_a_single_step_names_the_rank_that_is_waited_for_most():
    waits = np.array([[0.9, 0.0, 0.2]])
    blamed = np.zeros((1, 3, 3))
    blamed[0, 0] = [0, 0.7, 0.2]
    blamed[0, 2] = [0, 0.2, 0]
    found = lateness(waits, blamed)
    assert (found.stragglers, found.others) == ((1,), (2,))
    assert (found.straggling, found.moving) == (pytest.approx(0.7), pytest.approx(0.2))


def test_nobody_is_late_where_nobody_waits():
    found = divided(np.zeros((3, 4)))
    assert (found.straggling, found.moving, found.stragglers) == (0, 0, ())
    assert divided(np.zeros((3, 1))).stragglers == ()
