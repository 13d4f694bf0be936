"""The helper `for_each`: a test sees every case, says which one failed, and cannot be empty."""

import inspect

import pytest
from for_each import for_each, for_some, one_in
from hypothesis import given
from hypothesis import strategies as st

SEEN = []


@for_each("n", [1, 2])
@for_each(("a", "b"), [(3, 4), (5, 6)])
def test_all_pairs_are_seen(n, a, b, tmp_path):
    SEEN.append((n, a, b))
    assert tmp_path.exists()


def test_none_was_left_out():
    assert SEEN == [(1, 3, 4), (1, 5, 6), (2, 3, 4), (2, 5, 6)]


@for_each("n", [1, 2])
@given(m=st.integers(3, 4))
def test_examples_are_found_for_each(n, m):
    assert n < m


def test_a_failure_names_its_case():
    @for_each("n", [1, 0, 2], ids=["one", "nought", "two"])
    def inverse(n):
        assert 1 / n

    with pytest.raises(ZeroDivisionError) as caught:
        inverse()
    assert caught.value.__notes__ == ["n: nought"]


def test_a_case_may_have_a_name_of_its_own():
    seen = []

    @for_each(("a", "b"), [pytest.param(1, {"values": 2}, id="first"), (3, {})], ids=str)
    def unequal(a, b):
        seen.append((a, b))
        assert a != 1

    with pytest.raises(AssertionError) as caught:
        unequal()
    assert seen == [(1, {"values": 2})]
    assert caught.value.__notes__ == ["a, b: first"]

    @for_each("n", [{}, {"values": 1}])
    def one(n):
        seen.append(n)

    one()
    assert seen[1:] == [{}, {"values": 1}]


def test_a_skipped_case_does_not_end_the_others():
    seen = []

    @for_each("n", [1, 2, 3])
    def but_the_first(n):
        if n == 1:
            pytest.skip("one")
        seen.append(n)

    but_the_first()
    assert seen == [2, 3]


def test_all_skipped_is_skipped_and_none_at_all_fails():
    @for_each("n", [1, 2])
    def never(n):
        pytest.skip(f"not {n}")

    with pytest.raises(pytest.skip.Exception, match="not 1"):
        never()
    with pytest.raises(AssertionError, match="no case"):
        for_each("n", [])(lambda n: None)()


def test_an_argument_that_the_test_has_not_is_refused():
    with pytest.raises(AssertionError):
        for_each("m", [1])(lambda n: None)


def test_some_cases_are_in_the_default_tier_and_the_others_long():
    seen = []

    @for_some("n", range(5), 2)
    def recorded(n, tmp_path):
        seen.append(n)

    (mark,) = recorded.pytestmark
    some, others = mark.args[1]
    assert (some.marks, [one.name for one in others.marks]) == ((), ["long"])
    for group in (some, others):
        recorded(group=group.values[0], tmp_path=None)
    assert seen == [0, 2, 4, 1, 3]
    assert list(inspect.signature(recorded).parameters) == ["tmp_path", "group"]


def test_the_first_of_some_cases_can_be_chosen_and_each_may_be_an_item():
    @for_some("n", range(5), 2, first=1)
    def recorded(n):
        seen.append(n)

    seen = []
    some, others = recorded.pytestmark[0].args[1]
    for group in (some, others):
        recorded(group=group.values[0])
    assert seen == [1, 3, 0, 2, 4]
    first, second, third = one_in(2, "abc", first=1)
    assert second == "b"
    assert [(param.values, param.marks[0].name) for param in (first, third)] == [
        (("a",), "long"),
        (("c",), "long"),
    ]
