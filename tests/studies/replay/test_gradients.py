"""Gradients that are dealt to tensors come back in the buckets that they were in."""

from hypothesis import given
from hypothesis import strategies as st

from simdp.steps.partition import assign
from simdp.studies.replay.gradients import dealt, fitted_in, homes
from simdp.workload.layers.base import Parameter, constant


def tensors(sizes):
    return [Parameter(str(i), (size,), constant(0.0)) for i, size in enumerate(sizes)]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(1, 1000),
)
def test_torchs_rule_makes_the_same_buckets_again(buckets, cap):
    """All but the last hold their limit or more, as buckets of a job do."""
    totals = [cap + extra for extra, _ in buckets[:-1]] + [buckets[-1][0]]
    totals[-1] = min(totals[-1], cap + 10)
    sizes = [dealt(total, num, cap) for total, (_, num) in zip(totals, buckets, strict=True)]
    assert [sum(one) for one in sizes] == totals
    listed = [size for one in sizes for size in one if size]
    found = assign(tensors(listed), 1, [cap])
    held = [sum(listed[int(name)] for name in names) for names in found]
    assert held == totals


def test_more_tensors_than_elements_leave_some_empty():
    assert dealt(3, 5, None) == [1, 1, 1, 0, 0]
    assert dealt(0, 2, None) == [0, 0]


def test_a_tensor_is_of_the_first_bucket_that_is_launched_behind_it():
    assert homes([3, 7], [1, 3, 4, 7, 9]) == [[0, 1], [2, 3, 4]]
    assert homes([], [1, 2]) == []


def test_tensors_of_unknown_order_are_those_that_fill_the_buckets():
    """As ZeRO-1 broadcasts them, by owner: the largest comes first, and is the second bucket's."""
    totals, sizes = [102, 4004, 260], [4000, 100, 200, 2, 4, 50, 10]
    assert fitted_in(sizes, totals) == [[2, 100], [4, 4000], [10, 50, 200]]


def test_tensors_that_do_not_fill_the_buckets_are_not_sorted_in():
    assert fitted_in([5, 5], [6, 4]) is None
    assert fitted_in([5], [6]) is None
