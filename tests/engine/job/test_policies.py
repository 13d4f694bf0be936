"""Policies: what a failure costs, second by second, in jobs that can be followed by hand."""

import pytest
from jobs import PACES, FailureEvent, Saving, TrainingPace, fail, plan_of, played

from simdp.engine.job import run
from simdp.errors import ScenarioError

SAVING = Saving(10, 1.0, load=3.0)
TIMES = {"detection": "2 s", "rescheduling": "4 s", "restart": "5 s", "hang_timeout": "60 s"}


def test_a_job_without_failures_starts_trains_and_saves():
    outcome, parts, _ = played(plan_of(25, savings=[SAVING], recovery=TIMES))
    assert parts == {"startup": 5, "productive": 25, "checkpoint_save": 3}
    assert outcome.num_failures == 0
    assert outcome.node_seconds == 4 * outcome.finish


def test_a_restart_loses_work_and_waits_for_all_that_it_takes():
    # Starts until 5, a checkpoint from 15 to 16, and 4.5 s of work are lost.
    plan = plan_of(25, fail(20.5, 1), savings=[SAVING], recovery=TIMES)
    outcome, parts, _ = played(plan)
    assert parts == {
        "startup": 10,
        "productive": 25,
        "checkpoint_save": 3,
        "lost_work": 4.5,
        "recovery": 6,
        "checkpoint_restore": 3,
    }
    assert outcome.queued == 4
    assert outcome.num_failures == 1


def test_a_failure_during_the_restart_begins_it_anew():
    plan = plan_of(25, fail(20.5), fail(30), savings=[SAVING], recovery=TIMES)
    _, parts, _ = played(plan)
    assert parts["recovery"] == pytest.approx(6 + 6)
    assert parts["startup"] == pytest.approx(5 + 3.5 + 5)


def test_a_hang_is_found_after_its_timeout():
    plan = plan_of(25, fail(20.5, effect="hang"), savings=[SAVING], recovery=TIMES)
    _, parts, _ = played(plan)
    assert parts["recovery"] == pytest.approx(60 + 4)


def test_a_restart_waits_for_the_repair_of_its_nodes():
    plan = plan_of(25, fail(20.5, 1, repair=100.0), savings=[SAVING], recovery=TIMES)
    outcome, parts, _ = played(plan)
    assert parts["recovery"] == pytest.approx(100 + 4)
    assert outcome.queued == pytest.approx(98 + 4)
    assert outcome.node_seconds == pytest.approx(4 * outcome.finish - 100)


def test_without_checkpoints_all_is_lost():
    _, parts, _ = played(plan_of(25, fail(20), recovery={}))
    assert parts == {"productive": 25, "lost_work": 20}


def test_a_spare_takes_the_place_of_a_lost_node_and_the_next_loss_waits():
    spares = {**TIMES, "kind": "spares", "num": 1, "swap": "1 s"}
    one = plan_of(25, fail(20.5, 1, repair=1000.0), savings=[SAVING], recovery=spares)
    outcome, parts, _ = played(one)
    assert parts["recovery"] == pytest.approx(2 + 1)
    assert outcome.queued == 0
    two = plan_of(
        60, fail(20.5, 1, repair=100.0), fail(50, 4, repair=10.0), savings=[SAVING], recovery=spares
    )
    outcome, parts, _ = played(two)  # node 4 was the spare; it is back at 60
    assert outcome.num_failures == 2
    assert parts["recovery"] == pytest.approx(3 + 10 + 4)


def test_a_spare_that_fails_by_itself_disturbs_nobody():
    spares = {**TIMES, "kind": "spares", "num": 1}
    plan = plan_of(25, fail(10, 4, repair=1000.0), savings=[SAVING], recovery=spares)
    outcome, _, _ = played(plan)
    assert outcome.num_failures == 0
    assert outcome.finish == 5 + 25 + 3
    assert outcome.node_seconds == pytest.approx(5 * 10 + 4 * 23)


def test_an_elastic_job_goes_on_with_fewer_and_comes_up_after_a_checkpoint():
    elastic = {"kind": "elastic", "min_nodes": 2, "restart": "5 s"}
    plan = plan_of(40, fail(20.5, 1, repair=10.0), savings=[SAVING], recovery=elastic, paces=PACES)
    _, parts, run = played(plan, keeps_strip=True)
    # Kept at step 10, at 16; starts until 25.5, loads until 28.5; ten steps on three nodes.
    assert run.nodes.used == 4
    assert parts["startup"] == 15
    assert parts["checkpoint_restore"] == 6
    assert parts["lost_work"] == pytest.approx(4.5)
    assert parts["productive"] == pytest.approx(10 + 10 * 4 / 3 + 20)
    assert "recovery" not in parts


def test_an_elastic_job_that_comes_up_at_once_loses_work():
    elastic = {"kind": "elastic", "min_nodes": 2, "restart": "5 s", "rejoin": "at_once"}
    plan = plan_of(40, fail(20.5, 1, repair=12.0), savings=[SAVING], recovery=elastic, paces=PACES)
    _, parts, _ = played(plan)
    assert parts["lost_work"] == pytest.approx(4.5 + 4)  # it trained from 28.5 to 32.5
    assert parts["productive"] == pytest.approx(40)


def test_an_elastic_job_waits_for_its_least_nodes():
    elastic = {"kind": "elastic", "min_nodes": 4}
    plan = plan_of(25, fail(20.5, 1, repair=100.0), savings=[SAVING], recovery=elastic)
    outcome, parts, _ = played(plan)
    assert parts["recovery"] == outcome.queued == 100


def test_an_elastic_job_of_epochs_counts_samples():
    paces = {4: TrainingPace(1.0), 3: TrainingPace(1.0, headway=0.75)}
    elastic = {"kind": "elastic", "min_nodes": 3}
    gone = fail(0.0, 1, effect="leave")
    plan = plan_of(30, gone, savings=[SAVING], recovery=elastic, paces=paces)
    _, parts, _ = played(plan)
    assert parts["productive"] == 40


GROUPS = {"kind": "replica_groups", "timeout": "6 s", "detection": "2 s", "restart": "5 s"}


def test_a_group_that_fails_costs_a_step_and_a_timeout_and_heals_beside_the_others():
    plan = plan_of(50, fail(20.5, 1), savings=[SAVING], recovery=GROUPS, heal=7.0)
    outcome, parts, _ = played(plan)
    assert parts == {
        "startup": 5,
        "productive": 50,
        "lost_work": 0.5,  # the step from 20 to 20.5; the first ten and a save took until 16
        "recovery": 6,
        "checkpoint_save": 5,
    }
    assert outcome.num_failures == 1


def test_samples_of_a_group_that_heals_are_missing():
    plan = plan_of(
        50, fail(20.0, 1), savings=[SAVING], recovery=GROUPS, heal=7.0, counts_samples=True
    )
    _, parts, _ = played(plan)
    # Out from 26 to 34 but for a save at 26: seven whole steps of three groups of four.
    assert parts["productive"] == pytest.approx(52)


def test_below_the_quorum_nobody_steps_and_without_a_group_all_restart():
    few = {**GROUPS, "min_replicas": 4}
    _, parts, _ = played(plan_of(50, fail(20.5, 1), savings=[SAVING], recovery=few, heal=7.0))
    assert parts["recovery"] == pytest.approx(2 + 5 + 7)
    every = fail(20.5, 0, 1, 2, 3, repair=50.0)
    _, parts, _ = played(plan_of(50, every, savings=[SAVING], recovery=GROUPS, heal=7.0))
    assert parts["checkpoint_restore"] == 3
    assert parts["recovery"] == pytest.approx(50)
    _, parts, _ = played(plan_of(50, fail(20.5), savings=[SAVING], recovery=GROUPS, heal=7.0))
    assert parts["checkpoint_restore"] == 3
    assert parts["recovery"] == 2


def test_a_node_takes_its_group_along():
    by_two = {**GROUPS, "group_nodes": 2, "min_replicas": 2}
    plan = plan_of(50, fail(20.5, 1), savings=[SAVING], recovery=by_two, heal=7.0)
    _, parts, _ = played(plan)
    assert parts["recovery"] == pytest.approx(14)


def test_a_live_migration_repeats_a_step_and_nothing_else():
    moving = {**TIMES, "kind": "migrate", "migration": "30 s"}
    plan = plan_of(50, fail(20.5, 1, repair=1e6), savings=[SAVING], recovery=moving)
    _, parts, _ = played(plan)
    assert parts["recovery"] == 32
    assert parts["lost_work"] == 0.5
    assert "checkpoint_restore" not in parts


def test_what_cannot_be_moved_restarts():
    moving = {**TIMES, "kind": "migrate", "migration": "30 s", "share": "0 %"}
    for happens in (fail(20.5, 1), fail(20.5)):
        _, parts, _ = played(plan_of(50, happens, savings=[SAVING], recovery=moving))
        assert parts["checkpoint_restore"] == 3
        assert parts["recovery"] == 6


def test_nodes_that_are_set_free_in_time_cost_no_work():
    drain = fail(20.5, 1, repair=50.0, effect="drain")
    plan = plan_of(50, drain, savings=[SAVING], recovery={"restart": "5 s"})
    outcome, parts, _ = played(plan)
    assert "lost_work" not in parts
    assert parts["checkpoint_save"] == 1 + 5  # one more than the five of 50 steps
    assert parts["recovery"] == outcome.queued == pytest.approx(50 - 1.5)


def test_nodes_that_leave_come_back_when_they_join():
    away = fail(20.5, 1, effect="leave"), FailureEvent(100.5, "join", "test", (1,), 0.0)
    _, parts, _ = played(plan_of(50, *away, savings=[SAVING], recovery={}))
    assert parts["recovery"] == 80


def test_a_job_that_waits_for_nobody_says_so():
    plan = plan_of(50, fail(20.5, 1, effect="leave"), savings=[SAVING], recovery={})
    with pytest.raises(ScenarioError, match=r"the job waits forever from hour .*, when 1 of 4"):
        played(plan)


def test_a_job_without_headway_is_given_up(monkeypatch):
    """The first of the failures follows 5 s of progress."""
    monkeypatch.setattr(run, "MAX_IN_VAIN", 3)
    plan = plan_of(50, *(fail(5.0 * n) for n in range(1, 4)), savings=[SAVING], recovery={})
    assert played(plan)[0].num_failures == 3
    plan = plan_of(50, *(fail(5.0 * n) for n in range(1, 5)), savings=[SAVING], recovery={})
    with pytest.raises(ScenarioError, match="makes no progress; after 3 failures in a row"):
        played(plan)
