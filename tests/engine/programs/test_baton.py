"""The baton: one thread at a time, in the order of a virtual clock, and no thread left."""

import pytest
from ranks_left import no_rank_is_left

from simdp.engine.programs.runtime import Baton, Ended
from simdp.errors import DeadlockError


def stuck():
    return DeadlockError(["somebody"])


def test_ranks_take_turns_in_the_order_of_time_and_then_of_being_woken():
    log, running = [], []

    def body(rank):
        for turn in range(1, 4):
            baton.sleep(rank, float(turn * (3 - rank)))
            running.append(rank)
            assert running == [rank], "somebody else runs at the same time"
            log.append((baton.loop.now, rank))
            running.clear()

    baton = Baton(3, lambda rank: None)
    baton.run(body, stuck)
    assert log == [(1, 2), (2, 1), (2, 2), (3, 0), (3, 2), (4, 1), (6, 0), (6, 1), (9, 0)]


def test_whoever_gets_the_baton_is_entered_first():
    entered = []
    baton = Baton(2, entered.append)

    def body(rank):
        assert entered[-1] == rank
        baton.sleep(rank, baton.loop.now + 1)
        assert entered[-1] == rank

    baton.run(body, stuck)
    assert entered == [0, 1, 0, 1]


def test_what_nobody_waits_for_is_still_done():
    done = []
    baton = Baton(1, lambda rank: None)
    baton.run(lambda rank: baton.loop.at(7.0, done.append), stuck)
    assert done == [7.0]


def test_a_rank_that_nobody_wakes_is_stuck_and_its_thread_ends():
    unwound = []
    baton = Baton(2, lambda rank: None)

    def body(rank):
        try:
            if rank:
                baton.block(rank)
        except Ended:
            unwound.append(rank)
            raise

    with pytest.raises(DeadlockError, match="deadlock: somebody"):
        baton.run(body, stuck)
    assert unwound == [1]
    assert no_rank_is_left()


def test_what_is_raised_while_the_clock_moves_on_is_raised_for_all():
    def fail(now):
        raise ArithmeticError("of the clock")

    baton = Baton(2, lambda rank: None)
    with pytest.raises(ArithmeticError, match="of the clock"):
        baton.run(lambda rank: baton.loop.at(1.0, fail), stuck)


def test_an_interrupt_ends_every_thread():
    baton = Baton(3, lambda rank: None)

    def body(rank):
        if rank == 2:
            raise KeyboardInterrupt
        baton.block(rank)

    with pytest.raises(KeyboardInterrupt):
        baton.run(body, stuck)
    assert no_rank_is_left()
