"""History: the attempts of a run follow from what fails, or are refused."""

import pytest
from for_each import for_each

from simdp.engine.job.history import Attempt, GroupEvent, History, RestartEvent
from simdp.errors import ScenarioError


def fates(history):
    return [(a.first, a.stop, a.fate) for a in history.attempts]


def test_a_restart_goes_back_to_the_last_checkpoint():
    history = History.restarted(
        10, 4, [RestartEvent(6), RestartEvent(8, world_size=2), RestartEvent(9)]
    )
    assert fates(history) == [
        (0, 4, "kept"),
        (4, 6, "lost"),
        (4, 8, "kept"),
        (8, 9, "lost"),
        (8, 10, "kept"),
    ]
    assert [a.world_size for a in history.attempts] == [None, None, None, 2, 2]
    assert history.num_steps == 10
    assert history.changes_ranks


def test_without_failures_there_is_one_attempt():
    assert fates(History.restarted(10, 4, [])) == [(0, 10, "kept")]
    assert not History.restarted(10, 4, [RestartEvent(3)]).changes_ranks


F, J = "fail", "join"


def grouped(events, **options):
    history = History.of_groups(10, 3, [GroupEvent(*event) for event in events], **options)
    return [(a.first, a.stop, a.fate[0], a.groups, a.silent) for a in history.attempts]


ALL = (0, 1, 2)
GROUPED = {
    "one dies": (
        [(2, 1, F)],
        {},
        [(0, 2, "k", ALL, ()), (2, 3, "u", ALL, ()), (2, 10, "k", (0, 2), ())],
    ),
    "two die at once": (
        [(2, 1, F), (2, 0, F)],
        {},
        [(0, 2, "k", ALL, ()), (2, 3, "u", ALL, ()), (2, 10, "k", (2,), ())],
    ),
    "back at once": (
        [(0, 1, F), (0, 1, J)],
        {},
        [(0, 1, "u", ALL, ()), (0, 1, "k", ALL, (1,)), (1, 10, "k", ALL, ())],
    ),
    "dies while it heals": (
        [(1, 1, F), (4, 1, J), (4, 1, F)],
        {},
        [
            (0, 1, "k", ALL, ()),
            (1, 2, "u", ALL, ()),
            (1, 4, "k", (0, 2), ()),
            (4, 5, "u", ALL, (1,)),
            (4, 10, "k", (0, 2), ()),
        ],
    ),
    "another dies while it heals": (
        [(1, 1, F), (4, 1, J), (4, 0, F)],
        {},
        [
            (0, 1, "k", ALL, ()),
            (1, 2, "u", ALL, ()),
            (1, 4, "k", (0, 2), ()),
            (4, 5, "u", ALL, (1,)),
            (4, 10, "k", (1, 2), ()),
        ],
    ),
    "the last one that was there dies, when another is healed": (
        [(0, 0, F), (0, 1, F), (3, 0, J), (4, 2, F)],
        {},
        [
            (0, 1, "u", ALL, ()),
            (0, 3, "k", (2,), ()),
            (3, 4, "k", (0, 2), (0,)),
            (4, 5, "u", (0, 2), ()),
            (4, 10, "k", (0,), ()),
        ],
    ),
    "spares": (
        [(3, 0, F)],
        {"min_groups": 2, "fixed": True},
        [(0, 3, "k", ALL, (2,)), (3, 4, "u", ALL, (2,)), (3, 10, "k", (1, 2), ())],
    ),
    "periods": (
        [(5, 0, F), (7, 0, J)],
        {"period": 4},
        [
            (0, 4, "k", ALL, ()),
            (4, 8, "u", ALL, ()),
            (4, 8, "k", ALL, (0,)),
            (8, 10, "k", ALL, ()),
        ],
    ),
    "in the last period": (
        [(9, 0, F)],
        {"period": 4},
        [(0, 8, "k", ALL, ()), (8, 10, "u", ALL, ()), (8, 10, "k", (1, 2), ())],
    ),
    "in the last step": (
        [(9, 0, F)],
        {},
        [(0, 9, "k", ALL, ()), (9, 10, "u", ALL, ()), (9, 10, "k", (1, 2), ())],
    ),
    "back in the last step": (
        [(8, 0, F), (9, 0, J)],
        {},
        [
            (0, 8, "k", ALL, ()),
            (8, 9, "u", ALL, ()),
            (8, 9, "k", (1, 2), ()),
            (9, 10, "k", ALL, (0,)),
        ],
    ),
}


@for_each("case", GROUPED)
def test_groups_drop_out_and_come_back(case):
    events, options, attempts = GROUPED[case]
    assert grouped(events, **options) == attempts


def test_ranks_of_a_group_are_neighbours():
    history = History((Attempt(0, 3, groups=(0, 2), silent=(2,)), Attempt(3, 4)), num_groups=3)
    first, second = (history.participants(attempt, 6) for attempt in history.attempts)
    assert first.roles == ("counted",) * 2 + ("absent",) * 2 + ("silent",) * 2
    assert second.roles == ("counted",) * 6
    assert History((Attempt(0, 3),)).participants(Attempt(0, 3), 6) is None


REFUSED = {
    "a gap": (
        lambda: History((Attempt(0, 4), Attempt(5, 6))),
        "history.attempts.1: begins with step 5, but 4 steps are kept; begin with 4.",
    ),
    "nothing": (
        lambda: History((Attempt(0, 0),)),
        "history.attempts.0: has no step; let it stop at 1 or later.",
    ),
    "lost at the end": (
        lambda: History((Attempt(0, 4), Attempt(4, 6, "lost"))),
        "history.attempts: the last attempt is not kept; add one that is kept.",
    ),
    "empty": (
        lambda: History(()),
        "history.attempts: the last attempt is not kept; add one that is kept.",
    ),
    "groups of none": (
        lambda: History((Attempt(0, 4, "uncommitted"), Attempt(0, 4))),
        "history.attempts.0: has replica groups, but num_groups is 1; set num_groups, or leave "
        "them out.",
    ),
    "resized groups": (
        lambda: History((Attempt(0, 4, world_size=2),), num_groups=2),
        "history.attempts.0: replica groups have a fixed number of ranks; leave out world_size and "
        "grad_accum.",
    ),
    "an unknown group": (
        lambda: History((Attempt(0, 4, groups=(0, 2)),), num_groups=2),
        "history.attempts.0: there is no group 2; groups are 0 ... 1.",
    ),
    "all silent": (
        lambda: History((Attempt(0, 4, groups=(1,), silent=(1,)),), num_groups=2),
        "history.attempts.0: no present group counts; leave one out of silent.",
    ),
    "a late restart": (
        lambda: History.restarted(8, 2, [RestartEvent(8)]),
        "history.restarts.0: the run is never at step 8 then; write 0 ... 7.",
    ),
    "a backward restart": (
        lambda: History.restarted(8, 2, [RestartEvent(5), RestartEvent(3)]),
        "history.restarts.1: the run is never at step 3 then; write 4 ... 7.",
    ),
    "an event of no group": (
        lambda: grouped([(2, 3, F)]),
        "history.events.0: there is no group 3; groups are 0 ... 2.",
    ),
    "a backward event": (
        lambda: grouped([(4, 0, F), (3, 1, F)]),
        "history.events.1: step 3 is past or never comes; write 4 ... 9.",
    ),
    "dead already": (
        lambda: grouped([(2, 0, F), (2, 0, F)]),
        "history.events.1: group 0 is absent in step 2; leave this event out.",
    ),
    "there already": (
        lambda: grouped([(2, 0, J)]),
        "history.events.0: group 0 is already present in step 2; leave this event out.",
    ),
    "too few": (
        lambda: grouped([(2, 0, F), (3, 1, F)], min_groups=2),
        "history.events.1: 1 of 3 groups are left, fewer than the 2 that a step needs; let others "
        "join before.",
    ),
}


@for_each("case", REFUSED)
def test_refusals(case):
    make, line = REFUSED[case]
    with pytest.raises(ScenarioError) as caught:
        make()
    assert caught.value.problems == [line]
