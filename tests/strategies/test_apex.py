"""Apex: buckets by elements in order of arrival, and what else its wrapper does."""

import pytest
from for_each import for_each
from pydantic import ValidationError
from small_workload import facts_of, program_of, workload

from simdp.strategies.ddp import Apex
from simdp.workload.layers.base import Parameter

SIZES = {"a": 40, "b": 10, "c": 60, "d": 30, "idle": 500}
PARAMETERS = [Parameter(name, (size,), 1.0) for name, size in SIZES.items()]
READY = ["d", "c", "b", "a"]


def buckets(iteration, **options):
    return Apex(**options).buckets(PARAMETERS, READY, iteration)


def test_a_bucket_closes_once_it_has_as_many_elements_as_a_message():
    assert buckets(1, message_size=50) == [["d", "c"], ["b", "a"]]
    assert buckets(1, message_size=90) == [["d", "c"], ["b", "a"]]
    assert buckets(1, message_size=91) == [["d", "c", "b"], ["a"]]
    assert buckets(1, message_size=1) == [["d"], ["c"], ["b"], ["a"]]


def test_the_first_iteration_sends_everything_at_its_end():
    assert buckets(0, message_size=50) == [["a", "b", "c", "d"]]


def test_delayed_gradients_travel_in_one_piece():
    assert buckets(5, message_size=50, delay_allreduce=True) == [["a", "b", "c", "d"]]


def test_a_message_larger_than_the_model_is_one_bucket():
    assert buckets(1, message_size=250_000_000) == [READY]


def test_apex_has_messages_of_ten_million_elements():
    assert Apex().message_size == 10_000_000


@for_each(
    ("options", "nbytes"),
    [
        ({"message_size": 50}, 90 * 2),  # one bucket at a time
        ({"message_size": 50, "retain_allreduce_buffers": True}, 140 * 2),
        ({"delay_allreduce": True}, 140 * 2),
        ({"message_size": 50, "allreduce_always_fp32": True}, 90 * 4),
    ],
)
def test_flat_buffers_take_memory(options, nbytes):
    facts = facts_of(PARAMETERS, READY, ["idle"], itemsize=2)
    assert program_of(Apex(**options), facts).bucket_room == nbytes


@for_each(
    ("options", "message"),
    [
        ({"message_size": 0}, "greater than or equal to 1"),
        ({"gradient_predivide_factor": 0.0}, "greater than 0"),
    ],
)
def test_sizes_and_divisors_are_positive(options, message):
    with pytest.raises(ValidationError, match=message):
        Apex(**options)


def test_ranks_that_run_out_need_ddp():
    assert (
        Apex()
        .problem_with(2, workload(samples_per_rank=[8, 4]))
        .startswith("kind: ranks have different numbers of samples")
    )
    assert Apex().problem_with(2, workload()) is None
