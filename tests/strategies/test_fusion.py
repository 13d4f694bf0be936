"""Which gradients travel together, on cases counted by hand and on any times and sizes."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.strategies.horovod import (
    BENCHMARK_NBYTES,
    PUBLISHED,
    SMALLEST_MESSAGE,
    FusionGroup,
    fused,
    line_through,
    merged,
    next_cycle,
)

MS = 1e-3


def sizes_of(groups):
    return [len(group) for group in groups]


# Cycles ------------------------------------------------------------------------------------------


@for_each(
    ("ready", "cycle_time", "tick"),
    [
        (0.0, 1.0, 0.0),
        (0.3, 1.0, 1.0),
        (1.0, 1.0, 1.0),  # ready at the tick is in time
        (1.1, 1.0, 2.0),
        (0.3, 0.0, 0.3),
        (7.0, 2.5, 7.5),
    ],
)
def test_work_is_found_at_the_next_tick(ready, cycle_time, tick):
    assert next_cycle(ready, cycle_time) == tick


@given(ready=st.floats(0, 10), cycle_time=st.floats(1e-6, 1))
def test_a_tick_is_never_early_and_less_than_a_cycle_late(ready, cycle_time):
    wait = next_cycle(ready, cycle_time) - ready
    assert 0 <= wait <= cycle_time * (1 + 1e-6)


# Horovod -----------------------------------------------------------------------------------------


def test_gradients_of_one_cycle_are_fused_and_sent_at_its_end():
    ready = [0.2 * MS, 0.7 * MS, 1.4 * MS, 1.9 * MS, 4.1 * MS]
    assert fused(ready, [10.0] * 5, threshold=100.0, cycle_time=1 * MS) == [
        FusionGroup(range(2), 1 * MS),
        FusionGroup(range(2, 4), 2 * MS),
        FusionGroup(range(4, 5), 5 * MS),
    ]


def test_a_fused_message_fits_in_the_threshold():
    groups = fused([0.5] * 5, [40.0, 60.0, 1.0, 99.0, 2.0], threshold=100.0, cycle_time=1.0)
    assert groups == [
        FusionGroup(range(2), 1.0),
        FusionGroup(range(2, 4), 1.0),
        FusionGroup(range(4, 5), 1.0),
    ]


def test_what_exceeds_the_threshold_travels_alone():
    groups = fused([0.5] * 3, [10.0, 500.0, 10.0], threshold=100.0, cycle_time=1.0)
    assert sizes_of(group.members for group in groups) == [1, 1, 1]


def test_a_threshold_of_nothing_fuses_nothing():
    groups = fused([0.1, 0.2, 0.3], [8.0] * 3, threshold=0.0, cycle_time=1.0)
    assert groups == [FusionGroup(range(number, number + 1), 1.0) for number in range(3)]


def test_without_cycles_only_what_is_ready_at_once_is_fused():
    groups = fused([0.1, 0.1, 0.2], [8.0] * 3, threshold=100.0, cycle_time=0.0)
    assert groups == [FusionGroup(range(2), 0.1), FusionGroup(range(2, 3), 0.2)]


gradients = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=30)


@given(gradients=gradients, threshold=st.integers(0, 200), cycle_time=st.sampled_from([0, 0.1]))
def test_no_gradient_is_lost_early_or_out_of_order(gradients, threshold, cycle_time):
    ready = sorted(instant for instant, _ in gradients)
    nbytes = [float(size) for _, size in gradients]
    groups = fused(ready, nbytes, threshold, cycle_time)
    assert [i for group in groups for i in group.members] == list(range(len(gradients)))
    launches = [group.launch for group in groups]
    assert launches == sorted(launches)
    for group in groups:
        assert group.launch == next_cycle(ready[group.members[-1]], cycle_time)
        assert len(group.members) == 1 or sum(nbytes[i] for i in group.members) <= threshold


# MG-WFBP -----------------------------------------------------------------------------------------

BIG = SMALLEST_MESSAGE
ALPHA = 1 * MS
BETA = 1e-6 / BIG  # a big gradient of 4-byte elements takes 4 us beside alpha


def merged_big(*ready, alpha=ALPHA, beta=BETA):
    return merged([instant * MS for instant in ready], [BIG] * len(ready), 4, alpha, beta)


def test_waiting_less_than_alpha_is_worth_it_and_more_is_not():
    assert merged_big(1.0, 1.9, 3.0) == [range(2), range(2, 3)]


def test_what_is_ready_after_the_message_is_through_does_not_join_it():
    # 4 ms for the bytes: the second is ready in them, but waiting for it costs more than alpha.
    assert merged_big(1.0, 3.0, beta=1e-3 / BIG) == [range(1), range(1, 2)]
    assert merged_big(1.0, 3.0, alpha=5 * MS, beta=0.0) == [range(2)]


def test_what_is_ready_while_the_message_waits_its_turn_joins_it():
    # The first takes 5 ms from 1 ms on; the others would only wait behind it.
    slow = 1e-3 / BIG
    assert merged_big(1.0, 3.0, 5.5, 8.0, beta=slow) == [range(1), range(1, 3), range(3, 4)]


def test_without_alpha_nothing_waits():
    assert sizes_of(merged_big(1.0, 1.1, 1.2, alpha=0.0, beta=0.0)) == [1, 1, 1]


def test_with_a_large_alpha_everything_is_merged():
    assert merged_big(1.0, 2.0, 3.0, 4.0, alpha=2 * MS) == [range(4)]


def test_small_gradients_are_merged_whatever_it_costs():
    elements = [10, 10, BIG, 10]
    assert merged([1.0, 2.0, 3.0, 9.0], elements, 4, ALPHA, BETA) == [range(3), range(3, 4)]


@given(
    gradients=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10**6)), min_size=1, max_size=30),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1e-6),
)
def test_merging_loses_nothing_and_never_ends_later_than_no_merging(gradients, alpha, beta):
    ready = sorted(instant for instant, _ in gradients)
    elements = [BIG + size for _, size in gradients]

    def end(groups):
        free = 0.0
        for group in groups:
            nbytes = 4 * sum(elements[i] for i in group)
            free = max(free, ready[group[-1]]) + alpha + beta * nbytes
        return free

    groups = merged(ready, elements, 4, alpha, beta)
    assert [i for group in groups for i in group] == list(range(len(ready)))
    apart = [range(i, i + 1) for i in range(len(ready))]
    assert end(groups) <= end(apart) * (1 + 1e-9)


# Estimates ---------------------------------------------------------------------------------------


def test_a_benchmark_finds_the_line_through_two_sizes():
    small, large = BENCHMARK_NBYTES
    alpha, beta = line_through(2e-4 + 1e-9 * small, 2e-4 + 1e-9 * large)
    assert alpha == pytest.approx(2e-4)
    assert beta == pytest.approx(1e-9)


def test_no_estimate_is_negative():
    assert line_through(2e-4, 1e-4) == (2e-4, 0.0)
    alpha, beta = line_through(1e-6, 1.0)
    assert alpha == 0
    assert beta > 0


@for_each("network", PUBLISHED)
def test_published_estimates_grow_with_the_number_of_ranks(network):
    alphas = [alpha for alpha, _ in PUBLISHED[network].values()]
    assert list(PUBLISHED[network]) == [2, 4, 8, 16, 32, 64]
    assert alphas[0] < alphas[1] < alphas[2] < alphas[3]
    assert all(beta < 1e-9 for _, beta in PUBLISHED[network].values())
