"""Named random streams: equal names draw equally, and nobody shifts anybody else's draws."""

import numpy as np
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.rng import stream, uniform_at


def test_the_same_seed_and_name_draw_the_same():
    first, second = (stream(3, "straggler", 0, 7).random(100) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@for_each(
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


# Numbers that belong to a place ------------------------------------------------------------------

NAME = ("dropout", "layers.0", 3)


def at(members, shape=(6, 4), seed=0, name=NAME):
    return uniform_at(seed, name, np.array(members, dtype=np.int64), shape)


@given(
    members=st.lists(st.integers(0, 10**12), max_size=8),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
def test_a_member_draws_the_same_whoever_is_beside_it(members, shape):
    together = at(members, shape)
    assert together.shape == (len(members), *shape)
    assert together.dtype == np.float64
    for member, drawn in zip(members, together, strict=True):
        np.testing.assert_array_equal(drawn, at([member], shape)[0])


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
def test_cutting_an_axis_changes_none_of_the_numbers_that_stay(shape, data):
    smaller = tuple(data.draw(st.integers(1, size)) for size in shape)
    kept = tuple(slice(size) for size in smaller)
    whole = at([7, 0, 99], shape)
    np.testing.assert_array_equal(at([7, 0, 99], smaller), whole[(slice(None), *kept)])


@for_each(
    "other",
    [{"seed": 1}, {"name": ("dropout", "layers.1", 3)}, {"name": ("dropout", "layers.0", 4)}],
)
def test_another_seed_name_or_member_draws_something_else(other):
    assert not np.isin(at([5]), at([5], **other)).any()
    assert not np.isin(at([5]), at([6])).any()


def test_places_are_uniform_between_zero_and_one():
    drawn = at(range(1000), (50, 20))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    n = drawn.size
    for power in (1, 2, 3, 4):  # the moments of the uniform distribution, within 5 deviations
        wanted, second = 1 / (power + 1), 1 / (2 * power + 1)
        deviation = np.sqrt((second - wanted**2) / n)
        assert abs((drawn**power).mean() - wanted) < 5 * deviation
    counts, _ = np.histogram(drawn, 100, (0, 1))
    assert abs(((counts - n / 100) ** 2).sum() / (n / 100) - 99) < 5 * np.sqrt(2 * 99)  # chi^2
    assert len(np.unique(drawn)) == n


@for_each("axis", [0, 1, 2])
def test_neighbours_are_not_correlated(axis):
    drawn = at(range(200), (40, 30)) - 0.5
    here, there = np.take(drawn, range(1, drawn.shape[axis]), axis), np.delete(drawn, -1, axis)
    assert abs((here * there).mean() * 12) < 5 / np.sqrt(here.size)


def mixed(z):
    """The finaliser of SplitMix64 in Python's own whole numbers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_finaliser_is_splitmixs():
    # The first outputs of Java's SplittableRandom(0), which adds the golden gamma each time.
    gamma = 0x9E3779B97F4A7C15
    outputs = [mixed(gamma * k % 2**64) for k in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(member=st.integers(0, 2**40), row=st.integers(0, 4), column=st.integers(0, 4))
def test_a_place_is_hashed_from_the_key_the_member_and_the_indices(member, row, column):
    gamma = 0x9E3779B97F4A7C15
    key = int(stream(0, *NAME).integers(2**64, dtype=np.uint64))
    state = mixed((member * gamma + key) % 2**64)
    for index in (row, column):
        state = mixed((state + (index + 1) * gamma) % 2**64)
    assert at([member], (5, 5))[0, row, column] == (state >> 11) / 2**53


def test_places_draw_the_same_on_every_machine():
    assert at([0, 1], (2,)).tolist() == [
        [0.5810500730623375, 0.6385029480683574],
        [0.9096322959987418, 0.8638629316184717],
    ]
