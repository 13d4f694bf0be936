"""DeepSpeed's stages 1 and 2: buckets counted in elements, pieces of one flat buffer."""

import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sharded_runs import elements, play, sent, spans

from simdp.strategies.zero import KEYS, Zero1, Zero2, fill_up

DEEP = {"communication": "deepspeed"}
STAGES = [{"kind": "zero1", **DEEP}, {"kind": "zero2", **DEEP}]


@draws(4, 10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 3))
def test_gradients_are_all_reduced_and_parameters_gathered(widths, world_size, accumulate):
    share = 8 * (world_size - 1) / world_size * elements(widths)
    for strategy, reduced in zip(STAGES, (1, accumulate), strict=True):
        result = play(strategy, world_size, widths=widths, grad_accum=accumulate)
        wanted = (2 * reduced + 1) * share
        assert sum(sent(result)) / world_size == pytest.approx(wanted, rel=1e-12)


def test_a_bucket_closes_before_the_gradient_that_would_not_fit():
    sizes = {"a": 3, "b": 4, "c": 9, "d": 1, "e": 1}
    assert fill_up(list(sizes), sizes, 7) == [["a", "b"], ["c"], ["d", "e"]]
    assert fill_up(list(sizes), sizes, 1) == [[name] for name in sizes]
    assert fill_up([], sizes, 7) == []


def test_parameters_are_gathered_a_slice_at_a_time():
    strategy = {**STAGES[1], "allgather_bucket_size": 50}
    names = [s.name for s in spans(play(strategy, 2)) if s.name.startswith("all_gather")]
    assert names == [
        "all_gather parameters 0",
        "all_gather parameters 1",
    ]


def test_overlap_reduces_while_backward_goes_on():
    deep = {"widths": [64] * 6}
    late = play({**STAGES[1], "reduce_bucket_size": 4000}, 2, **deep)
    soon = play({**STAGES[1], "reduce_bucket_size": 4000, "overlap_comm": True}, 2, **deep)
    assert late.metrics["exposed_comm_s"] > soon.metrics["exposed_comm_s"]
    assert sent(late) == sent(soon)


@for_each("strategy", STAGES)
def test_gradients_are_copied_into_one_buffer_or_two_that_take_turns(strategy):
    def buckets(**options):
        result = play({**strategy, "reduce_bucket_size": 1000, **options}, 2)
        return result.metrics["memory_bytes"]["buckets"]

    assert buckets() == 8 * 1000
    assert buckets(overlap_comm=True) == 2 * 8 * 1000
    assert buckets(contiguous_gradients=False) == 8 * elements([5, 8, 6, 2])


@for_each("kind", [Zero1, Zero2])
@for_each("key", KEYS)
def test_options_of_deepspeed_belong_to_its_way(kind, key):
    value = True if key in KEYS[2:] else 5
    with pytest.raises(ValidationError, match=f"{key} belongs to communication: deepspeed"):
        kind(**{key: value})


@for_each("kind", [Zero1, Zero2])
def test_options_of_other_ways_are_refused_with_their_name_in_deepspeed(kind):
    with pytest.raises(ValidationError, match=r"write reduce_bucket_size \[elements\]"):
        kind(communication="deepspeed", bucket_cap="1 MiB")
    with pytest.raises(ValidationError, match="write overlap_comm"):
        kind(communication="deepspeed", overlap=False)
