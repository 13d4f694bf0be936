"""Packing: nothing is lost or doubled, no pack is too long, and little room is left."""

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simdp.workload.sampling import Packing, best_fit_decreasing

lengths = st.lists(st.integers(1, 64), min_size=1, max_size=60)


def packs(given, most, strategy="bfd"):
    return Packing(strategy=strategy).packs(np.array(given), most)


@given(given=lengths, most=st.integers(64, 200))
def test_every_sample_is_in_one_pack_and_no_pack_is_too_long(given, most):
    found = packs(given, most)
    assert sorted(found.pieces.tolist()) == sorted(given)
    assert found.tokens.max() <= most
    assert found.tokens.sum() == sum(given)
    assert found.first[0] == 0


@given(given=lengths, most=st.integers(64, 200))
def test_a_sample_goes_into_the_fullest_pack_that_has_room(given, most):
    """As whoever looks at all packs for each sample."""
    wanted = list[list[int]]()
    for length in sorted(given, reverse=True):
        rooms = [most - sum(pack) for pack in wanted]
        fitting = [room for room in rooms if room >= length]
        if fitting:
            wanted[rooms.index(min(fitting))].append(length)
        else:
            wanted.append([length])
    assert sorted(map(sum, best_fit_decreasing(np.array(given), most))) == sorted(map(sum, wanted))


@given(given=lengths, most=st.integers(1, 200))
def test_wrapped_packs_are_full_but_the_last(given, most):
    found = packs(given, most, "wrapped")
    assert (found.tokens[:-1] == most).all()
    assert 1 <= found.tokens[-1] <= most
    assert found.tokens.sum() == sum(given)
    assert (found.pieces == found.tokens).all()


def test_of_a_longer_sample_the_rest_is_left_out():
    assert packs([300, 20, 90], 100).tokens.tolist() == [100, 90, 20]


def test_samples_that_fit_leave_no_room():
    found = packs([5, 3, 7, 1, 4, 4], 8)
    assert sorted(found.tokens.tolist()) == [8, 8, 8]


@for_each("given", [{"to": 0}, {"to": 2048.5}, {"strategy": "first_fit"}])
def test_what_says_nothing_clear_is_refused(given):
    with pytest.raises(ValidationError):
        Packing.model_validate(given)
