"""Every straggler slows ranks down, and does so the same way whoever asks and in whatever order."""

from math import isfinite

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.cluster.stragglers import STRAGGLERS, AnyStraggler, Pause
from simdp.engine.slowdown import Slowdown
from simdp.rng import stream
from simdp.spec import problems

EXAMPLES = {
    "degraded_link": {"rank": 1, "bandwidth": 0.5},
    "empirical": {
        "quantiles": [{"quantile": 0, "factor": 0.9}, {"quantile": 1, "factor": 1.4}],
    },
    "gamma": {"cv": 0.3},
    "jitter": {"sigma": 0.3},
    "lognormal": {"sigma": 0.3},
    "pause": {"rank": 1, "every": "1 s", "duration": "0.1 s"},
    "shared_host": {"load": "p75"},
    "slow_node": {"node": 1, "factor": 1.5},
    "slow_rank": {"rank": 1, "factor": 1.5},
}

every_straggler = for_each("kind", STRAGGLERS)


def straggler(kind, **options):
    return TypeAdapter(AnyStraggler).validate_python({"kind": kind, **EXAMPLES[kind], **options})


def refusal(kind, **options):
    raw = {"kind": kind, **EXAMPLES[kind], **options}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyStraggler).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


def slowdown(world_size, *stragglers):
    """All of them together, as the clocks have them."""
    keys = {"world_size": world_size, "device": "t4-16gb", "link": "pcie3-x16"}
    raw = [chosen.model_dump(mode="json") for chosen in stragglers]
    return Slowdown(Cluster.model_validate({**keys, "stragglers": raw}), seed=0)


def draw(chosen, step, world_size, seed=0):
    return chosen.slowdown(step, world_size, stream(seed, "straggler", 0, step))


def test_every_kind_of_straggler_has_an_example_here():
    assert set(EXAMPLES) == set(STRAGGLERS)


@every_straggler
@for_each("world_size", [2, 5, 64])
def test_every_factor_is_finite_and_above_zero(kind, world_size):
    for step in range(50):
        factors = draw(straggler(kind), step, world_size)
        assert factors.shape == (world_size,)
        assert (factors > 0).all()
        assert np.isfinite(factors).all()


@every_straggler
def test_the_same_seed_draws_the_same(kind):
    np.testing.assert_array_equal(draw(straggler(kind), 3, 8), draw(straggler(kind), 3, 8))


@for_each("kind", sorted(set(STRAGGLERS) - {"jitter"}))  # dealt among all ranks
def test_the_draw_of_a_rank_does_not_depend_on_the_world_size(kind):
    small, large = (draw(straggler(kind), 3, n) for n in (3, 100))
    np.testing.assert_array_equal(small, large[:3])


@every_straggler
def test_time_is_lost_by_nobody_at_once_before_the_first_step(kind):
    np.testing.assert_array_equal(straggler(kind).lost(0, 4), np.zeros(4))


@every_straggler
def test_work_never_ends_before_it_would_without_a_straggler(kind):
    start, seconds, ranks = np.array([0.0, 0.95]), np.array([0.5, 0.3]), np.array([0, 1])
    end = slowdown(2, straggler(kind)).finish(start, seconds, ranks)
    assert (end >= start + seconds).all()
    assert (end == start + seconds).all() == (kind != "pause")


@every_straggler
@for_each("world_size", [2, 64])
def test_what_lasts_is_finite_above_zero_and_of_the_rank_alone(kind, world_size):
    def lasting(n):
        return straggler(kind).lasting(np.arange(n) // 2, stream(7, "straggler", 0, "lasting"))

    assert lasting(world_size).shape == (world_size,)
    assert (lasting(world_size) > 0).all()
    np.testing.assert_array_equal(lasting(world_size), lasting(100)[:world_size])


@for_each("kind", ["slow_rank", "pause"])
@for_each("every", ["1 s", 3])
def test_a_straggler_is_idle_where_its_rank_does_not_exist(kind, every):
    chosen = straggler(kind, rank=4, **({"every": every} if kind == "pause" else {}))
    together = slowdown(4, chosen)
    for step in range(7):
        assert together.factors(step).tolist() == [1.0] * 4
        assert together.lost(step).tolist() == [0.0] * 4
    assert together.finish(np.full(4, 0.95), np.ones(4), np.arange(4)).tolist() == [1.95] * 4


# Slow rank ---------------------------------------------------------------------------------------


def test_a_slow_rank_slows_itself_only():
    chosen = straggler("slow_rank", rank=2, factor=3)
    assert draw(chosen, 0, 4).tolist() == [1, 1, 3, 1]
    assert chosen.on_rank() == 2


@for_each(
    ("options", "line"),
    [
        ({"factor": 0}, "factor: 0 is out of range; it must be > 0.0."),
        ({"factor": -1}, "factor: -1 is out of range; it must be > 0.0."),
        ({"factor": float("nan")}, "factor: nan is not a finite number."),
        ({"factor": float("inf")}, "factor: inf is not a finite number."),
        ({"rank": -1}, "rank: -1 is out of range; it must be >= 0."),
        ({"rank": 0.5}, "rank: 0.5 is not a whole number."),
    ],
)
def test_a_wrong_slow_rank_is_refused(options, line):
    assert refusal("slow_rank", **options) == [line]


# Jitter ------------------------------------------------------------------------------------------


random_kinds = pytest.mark.parametrize("kind", ["jitter", "lognormal"])


@random_kinds
def test_jitter_differs_from_rank_to_rank(kind):
    assert len(np.unique(draw(straggler(kind), 0, 16))) == 16


def test_random_jitter_differs_from_step_to_step():
    chosen = straggler("lognormal")
    draws = np.stack([draw(chosen, step, 4) for step in range(4)])
    assert len(np.unique(draws)) == draws.size


@for_each("n", [1, 2, 8, 64])
def test_dealt_jitter_spreads_as_random_jitter_does_on_average(n):
    """E[max of n standard normals]: 0.564 of 2, 1.42 of 8, 2.34 of 64 (order statistics)."""
    logs = np.log(draw(straggler("jitter", sigma=0.3), 0, n)) / 0.3
    assert logs.max() == pytest.approx({1: 0.0, 2: 0.564, 8: 1.424, 64: 2.344}[n], abs=0.03)
    assert logs.sum() == pytest.approx(0, abs=1e-9)


def test_dealt_jitter_has_the_same_spread_in_every_step_and_another_slowest_rank():
    chosen = straggler("jitter")
    draws = [draw(chosen, step, 8) for step in range(20)]
    assert all((np.sort(one) == np.sort(draws[0])).all() for one in draws)
    assert len({int(one.argmax()) for one in draws}) > 4


@random_kinds
def test_jitter_has_median_one_and_the_given_spread(kind):
    logs = np.log(draw(straggler(kind, sigma=0.3), 0, 20_000))
    assert abs(np.median(logs)) < 0.01
    assert abs(logs.std() - 0.3) < 0.01


@random_kinds
def test_no_sigma_is_no_jitter(kind):
    np.testing.assert_array_equal(draw(straggler(kind, sigma=0), 0, 4), np.ones(4))


@random_kinds
def test_the_widest_jitter_still_takes_time(kind):
    chosen = straggler(kind, sigma=10)
    for step in range(100):
        assert (draw(chosen, step, 64) > 0).all()


@random_kinds
@for_each("sigma", [0.3, 10])
def test_jitter_has_40_bits(kind, sigma):
    mantissa, _ = np.frexp(draw(straggler(kind, sigma=sigma), 0, 1000))
    np.testing.assert_array_equal(mantissa * 2.0**40 % 1, np.zeros(1000))


@for_each(
    ("sigma", "line"),
    [
        (-0.1, "sigma: -0.1 is out of range; it must be >= 0.0."),
        (11, "sigma: 11 is out of range; it must be <= 10.0."),
    ],
)
@random_kinds
def test_a_wrong_jitter_is_refused(kind, sigma, line):
    assert refusal(kind, sigma=sigma) == [line]


def test_jitter_stays_when_another_straggler_is_idle():
    slow, jitter = straggler("slow_rank", rank=3, factor=2), straggler("lognormal")
    idle, busy = slowdown(2, slow, jitter), slowdown(4, slow, jitter)
    for step in range(4):
        np.testing.assert_array_equal(idle.factors(step), busy.factors(step)[:2])


# Pauses on the clock -----------------------------------------------------------------------------


def brute_force(start, seconds, every, duration):
    """Play whole seconds one by one: in the first ``duration`` of each period nothing is done."""
    now, left = start, seconds
    while left:
        paused = now >= every and now % every < duration
        left -= not paused
        now += 1
    return now


@given(
    every=st.integers(2, 12),
    start=st.integers(0, 60),
    seconds=st.integers(1, 60),
    data=st.data(),
)
def test_a_pause_on_the_clock_stops_work_at_every_multiple(every, start, seconds, data):
    duration = data.draw(st.integers(1, every - 1))
    pause = Pause(rank=0, every=f"{every} s", duration=f"{duration} s")
    end = pause.finish(float(start), float(seconds))
    assert end == brute_force(start, seconds, every, duration)


@given(
    every=st.floats(1e-3, 10),
    share=st.floats(0.01, 0.99),
    start=st.floats(0, 100),
    seconds=st.floats(1e-6, 100),
)
def test_work_during_pauses_takes_its_own_time_and_that_of_the_pauses(every, share, start, seconds):
    duration = every * share
    pause = Pause(rank=0, every=f"{every!r} s", duration=f"{duration!r} s")
    end = pause.finish(start, seconds)
    assert isfinite(end)
    working = seconds / (every - duration)  # periods of pure work
    assert start + seconds <= end + 1e-9
    assert end <= start + seconds + (working + 2) * duration + 1e-6


def test_a_pause_on_the_clock_concerns_its_rank_only():
    pause = Pause(rank=1, every="10 s", duration="4 s")
    start, seconds = np.array([8.0, 8.0, 8.0]), np.array([5.0, 5.0, 5.0])
    end = slowdown(3, pause).finish(start, seconds, np.arange(3))
    assert end.tolist() == [13.0, 17.0, 13.0]
    assert pause.lost(10, 3).tolist() == [0, 0, 0]
    assert pause.on_rank() == 1


def test_no_work_ends_at_once_even_in_a_pause():
    pause = Pause(rank=0, every="10 s", duration="4 s")
    end = slowdown(1, pause).finish(np.array([11.0]), np.array([0.0]), np.array([0]))
    assert end.tolist() == [11.0]


def test_work_that_ends_as_a_pause_begins_is_not_delayed():
    pause = Pause(rank=0, every="10 s", duration="4 s")
    work = [(7.0, 3.0), (14.0, 6.0), (12.0, 6.0), (10.0, 12.0)]
    assert [pause.finish(*each) for each in work] == [10.0, 20.0, 20.0, 30.0]


def test_there_is_no_pause_at_the_beginning_of_a_run():
    pause = Pause(rank=0, every="10 s", duration="4 s")
    assert pause.finish(0.0, 10.0) == 10.0


@for_each(
    ("instant", "window"),
    [
        (0.0, (10.0, 14.0)),
        (9.5, (10.0, 14.0)),
        (10.0, (10.0, 14.0)),
        (13.5, (10.0, 14.0)),
        (14.0, (20.0, 24.0)),
        (25.0, (30.0, 34.0)),
    ],
)
def test_a_window_is_the_pause_at_an_instant_or_the_next(instant, window):
    assert Pause(rank=0, every="10 s", duration="4 s").window(instant) == window


@given(
    every=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    start=st.integers(0, 60),
    seconds=st.integers(1, 60),
)
def test_pauses_of_one_rank_may_overlap(every, start, seconds):
    pauses = [Pause(rank=0, every=f"{each} s", duration="1 s") for each in every]
    end = slowdown(1, *pauses).finish(np.array([float(start)]), np.array([seconds]), np.array([0]))
    now, left = start, seconds
    while left:
        left -= not any(now >= each and now % each == 0 for each in every)
        now += 1
    assert end[0] == now


def test_two_pauses_of_one_rank_each_take_their_time():
    pauses = [Pause(rank=0, every=every, duration="1 s") for every in ("10 s", "15 s")]
    end = slowdown(1, *pauses).finish(np.array([1.0]), np.array([16.0]), np.array([0]))
    assert end.tolist() == [19.0]  # 16 s of work and the pauses at 10 s and at 15 s


# Pauses by steps ---------------------------------------------------------------------------------


def test_a_pause_by_steps_comes_at_every_multiple_but_the_first():
    pause = Pause(rank=1, every=3, duration="2 s")
    lost = [pause.lost(step, 3).tolist() for step in range(7)]
    assert lost == [[0, 2.0 * (step in (3, 6)), 0] for step in range(7)]


def test_a_pause_by_steps_leaves_the_clock_alone():
    pause = Pause(rank=0, every=3, duration="2 s")
    assert not pause.on_the_clock()
    end = slowdown(1, pause).finish(np.array([3.0]), np.array([9.0]), np.array([0]))
    assert end.tolist() == [12.0]


@for_each(
    ("options", "line"),
    [
        ({"every": 0}, "every: 0 is out of range; write a time or a number of steps >= 1."),
        ({"every": True}, 'every: True is not a time; write for example "5 us".'),
        ({"every": 2.5}, 'every: 2.5 has no unit; write "2.5 s", "2.5 ms" or "2.5 us".'),
        ({"every": "0 s"}, "every: 0 s is out of range; it must be > 0 s and finite."),
        ({"every": "5 GB"}, "every: '5 GB' is not a time; write for example \"5 us\"."),
        ({"duration": 1}, 'duration: 1 has no unit; write "1 s", "1 ms" or "1 us".'),
        ({"duration": "0 s"}, "duration: 0 s is out of range; it must be > 0 s and finite."),
        (
            {"every": "1 s", "duration": "1 s"},
            "duration 1 s leaves no time for work between pauses 1 s apart; make it shorter.",
        ),
    ],
)
def test_a_wrong_pause_is_refused(options, line):
    assert refusal("pause", **options) == [line]


@for_each("every", ["1 s", 3])
def test_a_pause_is_written_as_it_was_given(every):
    written = straggler("pause", every=every).model_dump(mode="json")
    assert written == {"kind": "pause", "rank": 1, "every": every, "duration": "0.1 s"}
