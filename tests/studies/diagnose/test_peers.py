"""From one rank: a late peer costs the same time whatever the size, a slow link the same factor."""

import pytest
from trace_maker import RankMaker

import simdp
from simdp.studies.diagnose.expected import CollectiveSize, Yardstick
from simdp.studies.diagnose.peers import is_steady

SIZES = (10_000_000, 40_000_000, 80_000_000)


def alone(lasts):
    """One rank of eight, whose collectives last what ``lasts`` makes of their proper times."""
    sizes = [CollectiveSize("all_reduce", 4.0 * size, tuple(range(8))) for size in SIZES]
    should = Yardstick("dgx-a100", None, 8).seconds(sizes)
    maker = RankMaker(0, 8, None)
    for step in range(4):
        maker.step(step + 1, float(step), step + 1.0)
        at = float(step)
        for place, size in enumerate(sizes):
            maker.kernel(at, at + 0.1, launched=float(step))
            lasted = lasts(place, should[size].usual)
            maker.call(
                "all_reduce", at + 0.1, at + 0.1 + lasted, SIZES[place], launched=float(step)
            )
            at += 0.1 + lasted
        maker.kernel(at, step + 1.0, launched=float(step))
    return simdp.diagnose([maker.trace()], machine="dgx-a100", remedies=False).verdict


def test_what_is_late_by_the_same_time_is_a_peer():
    first = alone(lambda place, proper: proper + (0.2 if place == 0 else 0.0))[0]
    assert (first.cause, first.ranks) == ("straggler", ())
    assert first.seconds == pytest.approx(0.2)
    assert "a rank whose trace is not here is late" in first.evidence


def test_what_is_slow_by_the_same_factor_is_a_link():
    first = alone(lambda _, proper: 50 * proper)[0]
    assert (first.cause, first.ranks) == ("slow_link", ())
    assert "50.0 times what it should" in first.evidence


def test_what_is_as_fast_as_it_should_be_is_neither():
    assert {one.cause for one in alone(lambda _, proper: proper)} <= {
        "compute_bound",
        "exposed_communication",
    }


def test_steady_is_what_all_steps_have_alike():
    assert is_steady([1.0, 1.1, 0.9, 1.0])
    assert not is_steady([0.0, 0.0, 4.0, 0.0])
    assert not is_steady([1.0, 1.0])
