"""Training: leaps say what steps taken one by one say, and failures lose what is not kept."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.engine.job.account import Account, TimeShares
from simdp.engine.job.training import JobTraining, Saving, TrainingPace


def training(num_steps, *savings, step=1.0, strip=False):
    return JobTraining(num_steps, savings, TrainingPace(step), Account(strip))


def walked(num_steps, savings, step, stop):
    """A synchronous or asynchronous job step by step: when it is done, or how far it is then."""
    now, kept, pending = 0.0, 0, []
    last = len(savings) - 1
    for done in range(1, num_steps + 1):
        now += step
        due = [i for i, s in enumerate(savings) if done % s.every == 0]
        if done == num_steps:
            due = [last] if savings else []
        if now > stop + 1e-9:
            break
        waits = [end for i, _, end in pending if i in due]
        now = max([now, *waits]) + sum(savings[i].blocking for i in due)
        if done == num_steps and savings:
            now += savings[last].background
        if now > stop + 1e-9:
            break
        pending += [(i, done, now + savings[i].background) for i in due]
    else:
        return now, num_steps
    kept = max([d for i, d, end in pending if end <= stop + 1e-9], default=0)
    return None, kept


SAVINGS = st.lists(
    st.builds(
        lambda every, blocking, behind: Saving(every, blocking, behind),
        st.integers(1, 12),
        st.sampled_from([0.0, 0.25, 2.0]),
        st.sampled_from([0.0, 0.5, 3.0, 9.0]),
    ),
    max_size=3,
)


@given(SAVINGS, st.integers(1, 100), st.lists(st.integers(1, 300), max_size=6))
def test_leaps_are_as_steps_one_by_one_however_often_one_looks(savings, num_steps, looks):
    end, _ = walked(num_steps, savings, 1.0, float("inf"))
    whole = training(num_steps, *savings)
    whole.train(1e9)
    assert whole.is_done
    assert whole.now == pytest.approx(end, rel=1e-12)
    assert sum(whole.account.seconds.values()) == pytest.approx(end, rel=1e-12)
    assert whole.account.seconds["productive"] == pytest.approx(num_steps)
    pieces = training(num_steps, *savings)
    for look in [*sorted(looks), 1e9]:
        pieces.train(look + 0.125)
    assert pieces.now == pytest.approx(end, rel=1e-12)
    assert pieces.account.seconds == pytest.approx(whole.account.seconds)


@given(SAVINGS, st.integers(2, 100), st.integers(1, 400))
def test_what_is_kept_at_an_instant_is_as_step_by_step(savings, num_steps, stop):
    at = stop + 0.125
    found = training(num_steps, *savings)
    found.train(at)
    end, kept = walked(num_steps, savings, 1.0, at)
    if end is not None:
        assert found.is_done
        return
    found.roll_back("node")
    assert found.steps == kept
    assert sum(found.account.seconds.values()) == pytest.approx(at)
    assert found.account.seconds["productive"] == pytest.approx(kept)


def test_a_failure_takes_copies_that_do_not_outlive_it():
    levels = (
        Saving(1, 0.0, load=1.0, tolerates="process"),
        Saving(5, 0.0, load=2.0, tolerates="node"),
    )
    storage = Saving(20, 0.0, load=30.0)
    for worst, steps, load in (("process", 37, 1.0), ("node", 35, 2.0), ("nodes", 20, 30.0)):
        found = training(100, *levels, storage)
        found.train(37.5)
        assert found.roll_back(worst) == load
        assert found.steps == steps
        assert found.account.seconds["lost_work"] == pytest.approx(37.5 - steps)


def test_a_write_that_is_not_through_is_lost():
    found = training(100, Saving(10, 1.0, background=5.0))
    found.train(11 + 10 + 1 + 4)  # the second write is not through
    found.roll_back("process")
    assert found.steps == 10
    assert found.account.seconds["checkpoint_save"] == pytest.approx(2.0)


def test_a_write_longer_than_the_interval_holds_training_up():
    found = training(30, Saving(10, 1.0, background=15.0))
    found.train(1e9)
    # 10 + 1, then the write ends 15 after that, and so on; the last one is waited for.
    assert found.now == pytest.approx(11 + 16 + 16 + 15)
    assert found.account.seconds["checkpoint_save"] == pytest.approx(1 + 6 + 6 + 15)


def test_time_is_shared_by_what_a_step_goes_to():
    shares = TimeShares(0.5, 0.25, 0.125, 0.125)
    found = JobTraining(8, [Saving(4, 1.0)], TrainingPace(2.0, shares), Account())
    found.train(11.0)
    found.roll_back("process")
    assert found.account.seconds["lost_work"] == pytest.approx(2.0)
    found.train(1e9)
    parts = found.account.seconds
    assert [parts[of] for of in ("productive", "data", "straggler", "other")] == [8, 4, 2, 2]


@for_each("strip", [True])
def test_the_strip_says_what_was_lost(strip):
    found = training(20, Saving(5, 1.0), strip=strip)
    found.train(14.0)
    found.roll_back("process")
    found.train(1e9)
    said = [(s.what, s.start, s.end) for s in found.account.strip]
    assert said[4] == ("lost", 12.0, 14.0)
    assert said[-1] == ("checkpoint_save", 25.0, 26.0)
    assert found.account.seconds["lost_work"] == 2.0
