"""Rehearsal: work in pieces costs what it costs when it is read again, whatever slows it down."""

import numpy as np

from simdp.engine.interpreters.costs import MAX_REHEARSED, Rehearsals, WorkPiece, piece, rehearse
from simdp.engine.ops import ComputeWork
from simdp.steps import ops

SECONDS = np.array([1.0, 2.0])
FACTORS = np.array([1.5, 3.0])
LOST = np.array([0.0, 10.0])
NOTHING = np.zeros(2)


def work(activity):
    return ComputeWork(0, activity, activity, SECONDS)


def charged(activities, owed=NOTHING):
    return piece([work(activity) for activity in activities]).charged(4, FACTORS, owed)


def test_stragglers_slow_down_passes_and_the_host_and_nothing_else():
    stretch = charged(["copy", "host", "forward", "update", "backward", "compress"])
    slow, usual = (SECONDS * FACTORS).tolist(), SECONDS.tolist()
    assert stretch.seconds.tolist() == [usual, slow, slow, usual, slow, usual]
    assert stretch.step == 4


def test_a_pause_comes_with_the_first_pass():
    stretch = charged(["host", "copy", "backward", "forward"], LOST)
    slow = SECONDS * FACTORS
    assert stretch.seconds[2].tolist() == (slow + LOST).tolist()
    assert stretch.seconds[3].tolist() == slow.tolist()


def test_a_piece_without_a_pass_has_no_pause():
    assert (
        charged(["copy", "host"], LOST).seconds.tolist()
        == charged(["copy", "host"]).seconds.tolist()
    )


def test_charging_a_piece_leaves_it_as_it_was():
    made = piece([work("forward")])
    once = made.charged(0, FACTORS, LOST).seconds
    assert made.seconds.tolist() == [SECONDS.tolist()]
    assert made.charged(1, FACTORS, LOST).seconds.tolist() == once.tolist()


def test_a_plan_is_work_in_pieces_between_what_must_be_read_anew():
    plan = [ops.Copy("x", 1.0), ops.Copy("x", 2.0), ops.Update(), ops.Copy("x", 3.0)]
    read = []

    def cost(op):
        read.append(op)
        return [work("copy")]

    first, update, last = rehearse(plan, cost)
    assert read == [plan[0], plan[1], plan[3]]
    assert update is plan[2]
    assert {type(first), type(last)} == {WorkPiece}
    assert (len(first.seconds), len(last.seconds)) == (2, 1)


def test_work_that_costs_nothing_makes_no_piece():
    assert rehearse([ops.Copy("x", 1.0), ops.Update(), ops.Copy("x", 1.0)], lambda op: []) == [
        ops.Update()
    ]


def test_the_oldest_step_is_forgotten_where_there_are_too_many():
    known = Rehearsals()
    for key in range(MAX_REHEARSED + 1):
        known.keep(key, (), [ops.Update()])
    assert known.find(0) is None
    assert all(known.find(key) == [ops.Update()] for key in range(1, MAX_REHEARSED + 1))


def test_an_update_is_worked_out_once():
    known = Rehearsals()
    assert known.update(lambda: "first") == "first"
    assert known.update(lambda: "second") == "first"
