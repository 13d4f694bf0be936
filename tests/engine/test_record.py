"""What a step leaves behind: the losses of micro-steps, joined by what they average."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.results.metrics import mean_losses

nan = float("nan")


def test_a_ranks_loss_is_the_mean_of_its_micro_steps_weighted_by_their_counts():
    losses = [np.array([1.0, 4.0]), np.array([3.0, 10.0])]
    counts = np.array([[1.0, 5.0], [3.0, 1.0]])
    mean, each = mean_losses(losses, counts)
    assert each == [(1 + 9) / 4, (20 + 10) / 6]
    assert mean == pytest.approx((1 + 9 + 20 + 10) / 10)


def test_a_rank_without_anything_to_average_has_no_loss_and_no_weight():
    losses = [np.array([2.0, nan, 4.0]), np.array([nan, nan, 6.0])]
    counts = np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    assert mean_losses(losses, counts) == ((4 + 4 + 6) / 4, [2.0, None, 5.0])


def test_nothing_at_all_has_no_loss():
    assert mean_losses([np.array([nan, nan])], np.zeros((1, 2))) == (None, [None, None])


def test_a_loss_that_is_no_number_is_told():
    mean, each = mean_losses([np.array([nan, 1.0])], np.ones((1, 2)))
    assert np.isnan(mean)
    assert np.isnan(each[0])
    assert each[1] == 1.0


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 5)), min_size=n, max_size=n),
            min_size=1,
            max_size=4,
        )
    )
)
def test_the_mean_is_over_everything_that_was_averaged(micro):
    """As if each loss were that many equal numbers."""
    counts = np.array([[count for _, count in ranks] for ranks in micro], dtype=float)
    losses = [np.array([loss if count else nan for loss, count in ranks]) for ranks in micro]
    mean, each = mean_losses(losses, counts)
    for rank, own in enumerate(each):
        numbers = [ranks[rank][0] for ranks in micro for _ in range(ranks[rank][1])]
        assert (own is None) == (not numbers)
        assert own is None or own == pytest.approx(np.mean(numbers), abs=1e-12)
    numbers = [loss for ranks in micro for loss, count in ranks for _ in range(count)]
    assert (mean is None) == (not numbers)
    assert mean is None or mean == pytest.approx(np.mean(numbers), abs=1e-12)
