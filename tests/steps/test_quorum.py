"""Quorum: who takes part, and what that makes of a strategy's operations."""

import numpy as np
from small_workload import NUM_SAMPLES, ops_of, workload

from simdp.steps.ops import AllReduce, Broadcast, FillBucket, NewGroup, Quorum, Update
from simdp.steps.program import Program
from simdp.strategies.ddp import DDP
from simdp.workload.sampling import Participants

SOME = Participants(("counted", "absent", "silent", "counted"))


def test_all_ranks_are_no_group_of_their_own():
    assert Quorum(4).group is None
    assert Quorum(4).there is None
    everyone = Quorum(4, Participants(("counted",) * 4))
    assert (everyone.group, everyone.there) == (None, (True,) * 4)


def test_some_ranks_are_a_group():
    quorum = Quorum(2, SOME)
    assert quorum.group == "quorum"
    assert quorum.there == (True, False, True, True)


def test_groups_that_lack_a_rank_do_not_take_part():
    assert Quorum(2, SOME).among(np.array([[0, 1], [2, 3]])).tolist() == [[2, 3]]
    assert Quorum(4).among(np.array([[0, 1], [2, 3]])).tolist() == [[0, 1], [2, 3]]


def test_ddp_sums_over_those_that_take_part_and_divides_by_those_that_count():
    found = Program.of(DDP(), workload(), 4, NUM_SAMPLES, participants=SOME)
    assert list(found.setup) == [NewGroup("quorum", ((0, 2, 3),), 0)]
    (sums,) = {op.group for op in ops_of(found.steady, AllReduce)}
    assert sums == "quorum"
    assert {op.divisor for op in ops_of(found.steady, FillBucket)} == {2.0}
    assert list(ops_of(found.steady, Update)) == [Update((True, False, True, True))]
    assert found.groups[0].collectives == ("all_reduce",)


def test_backup_ranks_take_part_and_do_not_count():
    found = Program.of(DDP(backup_ranks=1), workload(), 4, NUM_SAMPLES)
    assert ops_of(found.setup, Broadcast)
    assert {op.group for op in ops_of(found.steady, AllReduce)} == {None}
    assert {op.divisor for op in ops_of(found.steady, FillBucket)} == {3.0}
