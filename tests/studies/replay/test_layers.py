"""Layers of a profile: their tensors from buckets and gathers."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simdp.steps.partition import assign
from simdp.studies.replay.layers import (
    ReplayedLayer,
    by_fetches,
    packed_by_size,
    split_elements,
    tensors_by_bucket,
    units_of,
)
from simdp.studies.replay.strategy import Recognised
from simdp.studies.replay.timeline import BACKWARD, FORWARD, StepCollective, StepWork
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
    sizes = [
        split_elements(total, num, cap) for total, (_, num) in zip(totals, buckets, strict=True)
    ]
    assert [sum(one) for one in sizes] == totals
    listed = [size for one in sizes for size in one if size]
    found = assign(tensors(listed), 1, [cap])
    held = [sum(listed[int(name)] for name in names) for names in found]
    assert held == totals


def test_more_tensors_than_elements_leave_some_empty():
    assert split_elements(3, 5, None) == [1, 1, 1, 0, 0]
    assert split_elements(0, 2, None) == [0, 0]


def test_a_tensor_is_of_the_first_bucket_that_is_launched_behind_it():
    assert tensors_by_bucket([3, 7], [1, 3, 4, 7, 9]) == [[0, 1], [2, 3, 4]]
    assert tensors_by_bucket([], [1, 2]) == []


def test_tensors_of_unknown_order_are_those_that_fill_the_buckets():
    """As ZeRO-1 broadcasts them, by owner: the largest comes first, and is the second bucket's."""
    totals, sizes = [102, 4004, 260], [4000, 100, 200, 2, 4, 50, 10]
    assert packed_by_size(sizes, totals) == [[2, 100], [4, 4000], [10, 50, 200]]


def test_tensors_that_do_not_fill_the_buckets_are_not_sorted_in():
    assert packed_by_size([5, 5], [6, 4]) is None
    assert packed_by_size([5], [6]) is None


NAMES = ("embed", "norm", "a", "act", "b")

LARGE = 200_000


def layers():
    """In backward's order; forward takes 1 ms each, and what has weights has more of backward."""
    backward = {"embed": 2e-3, "a": 4e-3, "b": 3e-3}
    return [
        ReplayedLayer(name, 1e-3, backward.get(name, 1e-3), 0.0, 0.0, 0.0, place)
        for place, name in enumerate(reversed(NAMES))
    ]


def sent(label, elements, until=0):
    return StepCollective(
        name="all_gather",
        label=f"AllGather {label}".strip(),
        nbytes=4.0 * elements,
        dtype="float32",
        group="0",
        group_size=2,
        after=0,
        queued=False,
        seconds=1e-3,
        start=0.0,
        end=1e-3,
        until=until,
    )


def step(*waits):
    """A kernel for each layer, forward and backward; which of them waited for a gather."""
    n = len(NAMES)
    waited = np.zeros(2 * n)
    waited[[*waits]] = 1e-3
    return StepWork(
        names=tuple(f"kernel{i}" for i in range(2 * n)),
        phase=np.array([FORWARD] * n + [BACKWARD] * n),
        busy=np.full(2 * n, 1e-3),
        idle=np.zeros(2 * n),
        waits=waited,
        nbytes=np.full(2 * n, np.nan),
        launched=np.arange(2 * n) * 1e-3,
        stalled=0.0,
        begin=0.0,
        end=1e-2,
        sent=(),
    )


def sizes(units, persistent=(), waits=(), **strategy):
    """Elements by layer, in forward's order."""
    found = Recognised(
        {"kind": "zero3", **strategy}, "parameters", (), tuple(units), persistent=tuple(persistent)
    )
    given = reversed(by_fetches(layers(), found, step(*waits)))
    return [sum(size for _, size in layer.tensors) for layer in given]


def test_gathers_of_our_own_say_whose_parameters_they_bring():
    units = [sent("embed.weight", LARGE), sent("a.weight and 1 more", 4 * LARGE)]
    assert sizes(units) == [LARGE, 0, 2 * LARGE, 0, 2 * LARGE]


def test_parameters_that_stay_whole_are_dealt_to_the_other_layers():
    units = [sent("embed.weight", LARGE), sent("a.weight and 1 more", 4 * LARGE)]
    whole = [sent("norm.weight and 3 more", 500)]
    assert sizes(units, whole) == [LARGE, 250, 2 * LARGE, 250, 2 * LARGE]


def test_a_gather_begins_with_the_kernel_that_waited_for_it():
    """Its elements would put the second one further on: it has a fifth of them."""
    units = [sent("", 4 * LARGE, until=0), sent("", LARGE, until=2)]
    waited, hidden = sizes(units, waits=(0, 2)), sizes(units)
    assert (sum(waited[:2]), sum(waited[2:])) == (4 * LARGE, LARGE)
    assert (sum(hidden[:4]), sum(hidden[4:])) == (4 * LARGE, LARGE)


def test_the_last_of_what_is_fetched_ahead_fills_the_bucket():
    """As many as would fill it before it are not fetched at once."""
    units = [sent("a.weight and 1 more", 10 * LARGE)]
    assert sizes(units, prefetch_bucket_size=LARGE) == [0, 0, LARGE - 1, 0, 9 * LARGE + 1]


def test_no_fetched_tensor_is_so_small_that_it_would_stay_whole():
    assert sizes([sent("", 150_000)]).count(0) == len(NAMES) - 1


def test_numbers_of_units_are_a_pattern_only_where_it_means_no_other_module():
    units = tuple(sent(f"blocks.{i}", LARGE) for i in (2, 1, 0))
    found = Recognised({"kind": "fsdp"}, "units", units)
    names = [f"blocks.{i}.norm" for i in range(3)]
    assert units_of(found, names) == ["blocks.*"]
    apart = replace(found, buckets=units[::2])
    assert units_of(apart, names) == ["blocks.0", "blocks.2"]
