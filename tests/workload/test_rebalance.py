"""Rebalancing cuts whole samples by shares, and says which steps may differ."""

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simdp.spec import problems
from simdp.workload.sampling import Rebalance, by_shares, chunk_sizes, steps_from_global_batches


@given(
    num_samples=st.integers(0, 500),
    shares=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20),
)
def test_every_sample_goes_to_one_rank_and_nobody_is_off_by_one(num_samples, shares):
    sizes = by_shares(num_samples, shares)
    assert sizes.sum() == num_samples
    exact = np.array(shares) / sum(shares) * num_samples
    assert (np.abs(sizes - exact) < 1 + 1e-6).all()


def test_the_largest_remainders_get_what_is_left():
    assert by_shares(10, [1, 1, 1]).tolist() == [4, 3, 3]
    assert by_shares(7, [2, 2, 2, 1]).tolist() == [2, 2, 2, 1]
    assert by_shares(8, [2, 2, 2, 1]).tolist() == [3, 2, 2, 1]


def test_the_first_steps_are_cut_as_ever_and_later_ones_by_what_was_measured():
    rule = Rebalance(every=2)
    assert rule.is_open
    assert rule.sizes(7, 30, 8).tolist() == chunk_sizes(30, 8)
    known = rule.measured([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    assert not known.is_open
    found = [known.sizes(step, 8, 3).tolist() for step in range(7)]
    assert found == [[3, 3, 2]] * 2 + [[4, 2, 2]] * 2 + [[2, 2, 4]] * 3
    assert rule.is_open  # it is frozen


def test_what_was_measured_is_part_of_the_value_and_not_of_the_file():
    rule = Rebalance(every=2)
    assert rule.measured([[1.0, 2.0]]) != rule
    assert rule.measured([[1.0, 2.0]]) == rule.measured([[1.0, 2.0]])
    assert rule.measured([[1.0, 2.0]]).model_dump() == rule.model_dump()


def test_global_batches_are_cut_into_contiguous_pieces_of_the_sizes_told():
    def sizes(number, num_samples):
        return np.array([num_samples - number - 1, number + 1])

    steps = list(steps_from_global_batches(np.arange(13), 5, 2, 1, False, sizes))
    found = [[part.tolist() for part in step.micro[0]] for step in steps]
    assert found == [[[0, 1, 2, 3], [4]], [[5, 6, 7], [8, 9]], [[], [10, 11, 12]]]


def test_each_piece_is_cut_again_into_micro_steps():
    def sizes(number, num_samples):
        return np.array([5, 1])

    (step,) = steps_from_global_batches(np.arange(6), 6, 2, 2, False, sizes)
    assert step.sizes.tolist() == [[3, 1], [2, 0]]


@for_each(
    ("raw", "line"),
    [
        (
            {},
            "give either every, a number of steps, to go by measured speeds, or shares, one number "
            "per rank.",
        ),
        (
            {"every": 1, "shares": [1]},
            "give either every, a number of steps, to go by measured speeds, or shares, one number "
            "per rank.",
        ),
        ({"every": 0}, "every: 0 is out of range; it must be >= 1."),
        ({"shares": [1, 0]}, "shares.1: 0 is out of range; it must be > 0.0."),
    ],
)
def test_a_wrong_rule_is_refused(raw, line):
    with pytest.raises(ValidationError) as caught:
        Rebalance.model_validate(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]
