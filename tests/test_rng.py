"""Named random streams: equal names draw equally, and nobody shifts anybody else's draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.rng import stream


def test_the_same_seed_and_name_draw_the_same():
    first, second = (stream(3, "straggler", 0, 7).random(100) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "other",
    [
        (1, "straggler", 0, 0),
        (0, "shuffle", 0, 0),
        (0, "straggler", 1, 0),
        (0, "straggler", 0, 1),
        (0, "straggler", 0),
        (0, "straggler", 0, 0, 0),
    ],
)
def test_another_seed_or_name_draws_something_else(other):
    drawn = stream(0, "straggler", 0, 0).random(8)
    assert not np.array_equal(drawn, stream(*other).random(8))


def test_a_stream_is_the_same_on_every_machine():
    drawn = stream(0, "weights", 0, "layers.0.weight").integers(0, 2**32, 3)
    assert drawn.tolist() == [3703097098, 1034230293, 4260005013]


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(0, 2**40))
def test_a_stream_never_touches_the_global_generator(seed, step):
    before = np.random.get_state()[1].copy()  # noqa: NPY002  this is the state that must not move
    stream(seed, "straggler", step).random()
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_drawing_from_one_stream_leaves_another_as_it_was():
    alone = stream(0, "b").random(4)
    stream(0, "a").random(1000)
    np.testing.assert_array_equal(alone, stream(0, "b").random(4))
