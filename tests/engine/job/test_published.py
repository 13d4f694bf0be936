"""Published figures: runs drawn at random come to what formulas and papers say."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from closed_forms import expected_ettr
from for_each import for_each
from jobs import Saving, TrainingPace, plan_of, played

from simdp.cluster.failures.rates import Exponential
from simdp.engine.job.planning import best_of, by_rule, guarded_mttf_of, in_steps, mttf_of
from simdp.engine.job.training import Length
from simdp.job.recovery import daly, exact, slowdown

pytestmark = pytest.mark.slow

HOUR, MINUTE, DAY = 3600.0, 60.0, 86400.0


def random_plan(num_steps, step, every, write, restart, mttf, **keys):
    failures = Exponential.model_validate({"per": "job", "mtbf": f"{mttf} s"})
    plan = plan_of(
        num_steps,
        savings=[Saving(every, write)],
        nodes=1,
        recovery={"restart": f"{restart} s"},
        paces={1: TrainingPace(step)},
    )
    return replace(plan, failures=(failures,), **keys)


def finishes(plan, runs):
    return np.array([played(plan, number)[0].finish for number in range(runs)])


@pytest.mark.parametrize(
    ("mttf", "hours", "runs"),
    [
        (24 * HOUR, 547.9, 150),
        (6 * HOUR, 610.2, 80),
        pytest.param(15 * MINUTE, 2504.0, 24, marks=pytest.mark.long),
    ],
)
def test_dalys_jobs_take_the_published_hours(mttf, hours, runs):
    write, restart, work = 300.0, 600.0, 500 * HOUR
    steps = round(work / exact(write, mttf))  # a step from one checkpoint to the next
    plan = random_plan(steps * 10, work / steps / 10, 10, write, restart, mttf)
    found = finishes(plan, runs) / HOUR
    assert found.mean() == pytest.approx(hours, rel=0.01)
    assert found.std() / runs**0.5 < 0.01 * hours


def test_llamas_goodput_is_as_expected():
    """2,048 nodes, 3.79 failures per 1,000 node-days, w 20 s, R 300 s, t 667 s: 0.916."""
    rate = Exponential.model_validate({"rate": "3.79 per 1000 node-days"})
    plan = plan_of(
        46_000, savings=[Saving(107, 20.0)], nodes=2048, recovery={"restart": "300 s"},
        paces={2048: TrainingPace(667 / 107)},
    )  # fmt: skip
    plan = replace(plan, failures=(rate,), devices_per_node=8)
    assert mttf_of(plan) == pytest.approx(3.093 * HOUR, rel=1e-3)
    outcomes = [played(plan, number)[0] for number in range(60)]
    goodput = np.mean([one.parts[0] / one.finish for one in outcomes])
    assert goodput == pytest.approx(0.916, abs=0.005)
    assert goodput == pytest.approx(expected_ettr(667, 20, mttf_of(plan), 300), rel=0.01)


@pytest.mark.parametrize(
    ("mttf", "write"),
    [
        (3 * HOUR, 20.0),
        pytest.param(6 * HOUR, 300.0, marks=pytest.mark.long),
        pytest.param(24 * HOUR, 300.0, marks=pytest.mark.long),
    ],
)
def test_an_interval_that_was_tried_costs_at_most_a_500th_more_than_the_best(mttf, write):
    best = exact(write, mttf)
    step = best / 200
    plan = random_plan(100_000_000, step, 200, write, 600.0, mttf)
    found = best_of(plan, in_steps(2.5 * best, plan), mttf) * step
    cost = slowdown(found, write, mttf, 600.0) / slowdown(best, write, mttf, 600.0)
    assert cost <= 1.002


@for_each("rule", ["young", "daly"])
def test_rules_are_rounded_to_steps_and_end_with_the_job(rule):
    plan = random_plan(10_000, 7.0, 1, 20.0, 300.0, 3 * HOUR)
    formula = {"young": 657.27, "daly": 644.0}[rule]
    assert by_rule(rule, plan) == pytest.approx(formula / 7, abs=1)
    assert by_rule(rule, replace(plan, length=Length(50, False))) == 50
    assert by_rule(rule, replace(plan, failures=())) == 10_000


@for_each("rule", ["young", "daly"])
def test_no_rule_asks_for_a_checkpoint_before_the_last_one_is_written(rule):
    plan = random_plan(10_000, 7.0, 1, 0.1, 300.0, 3 * HOUR)
    behind = replace(plan, savings=(Saving(1, 0.1, background=100.0),))
    assert by_rule(rule, plan) == 7
    assert by_rule(rule, behind) == 15


def test_the_time_between_failures_is_estimated_where_no_rate_is_known():
    from jobs import Written, fail

    plan = plan_of(10, *(fail(100.0 * n) for n in range(1, 50)))
    assert isinstance(plan.failures[0], Written)
    assert mttf_of(plan) == pytest.approx(100.0)


def hit(plan, *failures, **changes):
    """A job whose failures come by chance."""
    return replace(plan, failures=tuple(Exponential.model_validate(f) for f in failures), **changes)


NODES = {"per": "node", "mtbf": "400 h"}
JOB = {"per": "job", "mtbf": "200 h"}


@for_each(
    ("recovery", "levels", "failures", "hours"),
    [
        ({"kind": "restart"}, (), [NODES, JOB], 1 / (4 / 400 + 1 / 200)),
        ({"kind": "spares", "num": 1}, (), [NODES], 100.0),
        ({"kind": "elastic"}, (), [NODES], 100.0),
        ({"kind": "elastic", "rejoin": "at_once"}, (), [NODES], 100.0),
        ({"kind": "elastic", "rejoin": "at_once"}, (), [NODES | {"repair": "2 h"}], 50.0),
        ({"kind": "migrate", "migration": "1 min"}, (), [NODES, JOB], 200.0),
        ({"kind": "migrate", "migration": "1 min", "share": "75 %"}, (), [NODES], 400.0),
        ({"kind": "migrate", "migration": "1 min"}, (), [NODES], inf),
        ({"kind": "restart"}, ("process",), [NODES, JOB], 100.0),
        ({"kind": "restart"}, ("node",), [NODES, JOB], inf),
        ({"kind": "replica_groups"}, (), [NODES, JOB], 200.0),
        ({"kind": "replica_groups"}, (), [NODES], inf),
    ],
)
def test_a_checkpoint_guards_against_those_failures_alone_that_load_it(
    recovery, levels, failures, hours
):
    copies = [Saving(1, 1.0, tolerates=worst) for worst in levels]
    plan = hit(plan_of(10, savings=[*copies, Saving(10, 20.0)], recovery=recovery), *failures)
    assert guarded_mttf_of(plan) / HOUR == pytest.approx(hours, rel=0.05)


def test_replica_groups_load_a_checkpoint_when_none_is_left():
    """Two groups that are out for a share of the time: as often as both are, by renewal theory."""
    recovery = {"kind": "replica_groups", "group_nodes": 2, "restart": "10 h"}
    plan = hit(plan_of(10, savings=[Saving(10, 20.0)], recovery=recovery), NODES)
    rate, out = 2 / 400, 10.0  # of a group [1/h]; a failure while it is out begins anew
    up = np.exp(-rate * out)  # share of the time that a group takes part
    expected = 1 / (2 * rate * (1 - up))
    assert guarded_mttf_of(plan) / HOUR == pytest.approx(expected, rel=0.15)


def test_by_the_rules_replica_groups_are_done_no_later_than_with_rare_checkpoints():
    recovery = {"kind": "replica_groups", "restart": "5 min", "timeout": "60 s"}
    plan = plan_of(
        20_000, savings=[Saving(1, 60.0)], recovery=recovery, paces={4: TrainingPace(10.0)}
    )
    plan = hit(plan, {"per": "node", "mtbf": "10 h"})
    every = {
        "daly": by_rule("daly", plan),
        "all failures": in_steps(daly(60.0, mttf_of(plan)), plan),
        "rare": 20_000,
    }
    times = {
        name: finishes(replace(plan, savings=(Saving(steps, 60.0),)), 20).mean()
        for name, steps in every.items()
    }
    assert times["daly"] <= times["rare"] * 1.001
    assert times["daly"] < 0.98 * times["all failures"]
