"""Numbers of several ranks that are computed bit by bit, together or alone."""

import numpy as np
import pytest

from simdp.engine.replicas import Walk, alone, together
from simdp.workload.layers.base import PAUSE


def rank(number, rounds, pauses=0):
    """Exchange a part in every round; return what came back."""
    found = []
    for _ in range(rounds):
        for _ in range(pauses):
            assert (yield PAUSE) is None
        found.append(float((yield np.array([number + 1.0]))[0]))
    return found


def add(parts):
    return [sum(parts)] * len(parts)


def test_ranks_are_answered_together_and_those_that_are_done_send_zeros():
    walk = Walk(together([rank(0, 2), rank(1, 0), rank(2, 1)], add, 1))
    assert walk.result() == [[4.0, 1.0], [], [4.0]]


def test_where_ranks_pause_so_does_the_walk():
    walk = Walk(together([rank(0, 2, pauses=1), rank(1, 2, pauses=1)], add, 1))
    with pytest.raises(AssertionError, match="has not ended"):
        walk.result()
    walk.step()
    walk.step()
    assert walk.result() == [[3.0, 3.0], [3.0, 3.0]]


def test_alone_there_is_nobody_to_exchange_with():
    assert alone(rank(0, 0)) == []
    with pytest.raises(AssertionError, match="exchanges with other ranks"):
        alone(rank(0, 1))
