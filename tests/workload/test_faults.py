"""Faults: which value, on which rank, in which step."""

import math

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.faults import FAULTS, AnyFault

every_fault = pytest.mark.parametrize("kind", FAULTS)


def fault(kind, **options):
    return TypeAdapter(AnyFault).validate_python({"kind": kind, **options})


@every_fault
def test_a_fault_happens_in_one_step_where_its_rank_exists(kind):
    chosen = fault(kind, rank=1, step=3)
    assert [step for step in range(1, 6) if chosen.happens(step, 2)] == [3]
    assert not chosen.happens(3, 1)


@every_fault
def test_a_fault_puts_in_what_no_gradient_should_be(kind):
    assert not math.isfinite(fault(kind, rank=0, step=1).value)


def test_inf_is_infinite_and_nan_is_no_number():
    assert fault("inf", rank=0, step=1).value == math.inf
    assert math.isnan(fault("nan", rank=0, step=1).value)


@every_fault
def test_a_fault_is_read_back_as_it_was_written(kind):
    adapter, chosen = TypeAdapter(AnyFault), fault(kind, rank=2, step=5)
    written = adapter.dump_python(chosen, mode="json")
    assert written == {"kind": kind, "rank": 2, "step": 5}
    assert adapter.validate_python(written) == chosen


@for_each(
    ("raw", "line"),
    [
        (
            {"kind": "info", "rank": 0, "step": 1},
            "unknown fault 'info'. Did you mean 'inf'? Known: inf, nan.",
        ),
        ({"rank": 0, "step": 1}, "this fault has no kind; known: inf, nan."),
        (
            {"kind": "inf", "step": 1},
            "rank: is required but was not given; add it.",
        ),
        (
            {"kind": "inf", "rank": 1},
            "step: is required but was not given; add it.",
        ),
        (
            {"kind": "inf", "rank": -1, "step": 1},
            "rank: -1 is out of range; it must be >= 0.",
        ),
        (
            {"kind": "nan", "rank": 0, "step": 0},
            "step: 0 is out of range; it must be >= 1.",
        ),
        (
            {"kind": "nan", "rank": 0, "step": 1.5},
            "step: 1.5 is not a whole number.",
        ),
        (
            {"kind": "nan", "rank": 0, "step": 10**10},
            "step: 10000000000 is out of range; it must be <= 1000000000.",
        ),
    ],
)
def test_a_wrong_fault_is_refused_with_what_is_allowed(raw, line):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyFault).validate_python(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]
