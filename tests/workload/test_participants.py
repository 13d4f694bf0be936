"""Participants: who takes part in a step, and whose gradients count."""

import numpy as np

from simdp.workload.sampling import Participants, SampleParts, StepBatches

ROLES = Participants(("counted", "late", "absent", "counted", "silent"))


def test_roles_say_who_counts_and_who_is_there():
    assert ROLES.counted.tolist() == [True, False, False, True, False]
    assert ROLES.there.tolist() == [True, True, False, True, True]
    assert ROLES.late.tolist() == [False, True, False, False, False]
    assert (ROLES.num_counted, ROLES.ranks) == (2, (0, 1, 3, 4))


def test_some_ranks_have_another_role():
    assert Participants.without(3, "late", [1]).roles == ("counted", "late", "counted")


def test_the_late_leave_work_when_the_slowest_that_counts_has_done_it():
    whole = np.array([[1.0, 5.0, 9.0, 2.0, 7.0], [1.0, 0.5, 9.0, 2.0, 7.0]])
    assert ROLES.seconds(whole).tolist() == [[1, 2, 0, 2, 7], [1, 0.5, 0, 2, 7]]


def test_nobody_late_changes_no_time_of_those_that_are_there():
    whole = np.arange(5.0)
    assert Participants(("counted",) * 5).seconds(whole).tolist() == whole.tolist()


def test_a_step_of_some_ranks_keeps_their_samples():
    batches = StepBatches.of([SampleParts.even(np.arange(8), 4), SampleParts.even(np.arange(4), 4)])
    some = batches.only(np.array([True, False, True, False]))
    assert [[part.tolist() for part in parts] for parts in some.micro] == [
        [[0, 1], [], [4, 5], []],
        [[0], [], [2], []],
    ]
    assert some.sizes.tolist() == [[2, 0, 2, 0], [1, 0, 1, 0]]
