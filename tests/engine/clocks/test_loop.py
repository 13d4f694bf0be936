"""The loop: instants to the bit, and a certain order at each of them."""

import simpy
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.clocks.flows import LAST, SHARES, EventLoop, turn_of

INSTANTS = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(INSTANTS, min_size=1, max_size=8))
def test_a_process_wakes_at_the_instant_that_it_was_told_to_the_bit(instants):
    loop, found = EventLoop(), []

    def sleeper():
        for instant in sorted(instants):
            value = yield loop.until(instant)
            found.append((loop.now, value))

    loop.process(sleeper())
    loop.run()
    assert found == [(instant, instant) for instant in sorted(instants)]


def test_simpys_own_delays_may_miss_an_instant_that_the_loop_hits():
    """0.2 + (0.9 - 0.2) is not 0.9."""
    for env, sleep, there in (
        (simpy.Environment(), lambda e: e.timeout(0.9 - e.now), False),
        (EventLoop(), lambda e: e.until(0.9), True),
    ):
        env.run(until=env.timeout(0.2))
        env.run(until=sleep(env))
        assert (env.now == 0.9) is there


def test_what_shares_an_instant_happens_in_turns_and_ranks_from_0_on():
    loop, log = EventLoop(), []

    def rank(number):
        yield loop.until(1.0, turn_of(number))
        log.append(number)

    loop.in_turn(1.0, LAST, lambda now: log.append("last"))
    loop.in_turn(1.0, SHARES, lambda now: log.append("shares"))
    for number in (2, 0, 1):
        loop.process(rank(number))
    loop.at(1.0, log.append)
    loop.run()
    assert log == [1.0, 0, 1, 2, "shares", "last"]


def test_what_follows_at_the_same_instant_still_comes_before_later_turns():
    loop, log = EventLoop(), []
    loop.in_turn(1.0, LAST, lambda now: log.append("last"))
    loop.in_turn(1.0, SHARES, lambda now: loop.in_turn(now, turn_of(3), lambda _: log.append(3)))
    loop.run()
    assert log == [3, "last"]


def test_what_is_due_at_one_instant_happens_in_the_order_of_the_calls():
    loop, log = EventLoop(), []
    for name in "ba":
        loop.at(2.0, lambda name, now: log.append((name, now)), name)
    loop.at(1.0, lambda now: loop.at(0.5, lambda now: log.append(("late", now))))
    loop.run()
    assert log == [("late", 1.0), ("b", 2.0), ("a", 2.0)]
