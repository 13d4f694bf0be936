"""Interval: how many steps lie between two checkpoints, by a formula or by trying.

The formulas take the mean time between the failures that a checkpoint guards against. After a
restart, or with spares, these are all; where nodes move, those that leave nothing to move; where
replica groups go on without each other, those that leave no group, or kill the whole job. How much
work such a failure takes does not matter to them: it is half of an interval in any case.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import ceil, exp, inf, log

import numpy as np

from simdp.engine.job.events import Event, events, expected_mttf
from simdp.engine.job.length import Length
from simdp.engine.job.plan import Plan
from simdp.engine.job.policies import policy_for, worst
from simdp.engine.job.run import Run
from simdp.engine.job.training import WORST
from simdp.errors import ScenarioError
from simdp.job import intervals
from simdp.job.recovery.elastic import Elastic
from simdp.job.recovery.migrate import Migrate
from simdp.job.recovery.replica_groups import ReplicaGroups

MANY_EVENTS, SOME_RUNS = 4000, 20
"""Events, and runs, from which a mean time between failures is taken where no formula has it."""

TRIED_RUNS, TRIED_FAILURES = 32, 150
"""Runs with each interval that is tried, and failures in each: all see the same failures."""

FINE, REACH = 7, 1.6
"""Intervals tried at last, and the factor within which they are of the best of those before."""


def mttf_of(plan: Plan) -> float:
    """Mean time between failures of all nodes of a job without spares [s]; inf where none fails.

    By the rates, or where there are none by what happens in some runs.
    """
    sizes = plan.num_nodes, plan.devices_per_node
    if not plan.failures:
        return inf
    known = expected_mttf(plan.failures, *sizes)
    if known is not None:
        return known
    count, total = 0, 0.0
    for run in range(SOME_RUNS):
        hits = [
            event.time
            for event in islice(
                events(plan.failures, *sizes, plan.seed, run), MANY_EVENTS // SOME_RUNS
            )
            if event.effect in ("fail", "hang", "leave")
        ]
        count, total = count + len(hits), total + (hits[-1] if hits else 0.0)
    return total / count if count else inf


def guarded_mttf_of(plan: Plan) -> float:
    """Mean time between failures after which a job loads the checkpoint of the last kind [s].

    Only these are what it guards against; inf where there are none. After all others the job goes
    on from what is left: a peer's state, a node that took over, or a copy in memory.
    """
    mttf = mttf_of(plan)
    share = 1.0 if mttf == inf else _share_guarded(plan)
    return mttf / share if share else inf


def _share_guarded(plan: Plan) -> float:
    """Loads of the last kind of checkpoint per failure, by what happens in some runs."""
    recovery, kept = plan.recovery, plan.savings[:-1]
    always = not isinstance(recovery, Elastic | Migrate | ReplicaGroups)
    if not kept and (always or (isinstance(recovery, Elastic) and recovery.up == "checkpoint")):
        return 1.0
    covered = max((WORST.index(saving.survives) for saving in kept), default=-1)
    moved = recovery.share if isinstance(recovery, Migrate) else 0.0
    count, loads = 0, 0.0
    for run in range(SOME_RUNS):
        groups = _Groups(plan) if isinstance(recovery, ReplicaGroups) else None
        drawn = events(plan.failures, plan.num_nodes, plan.devices_per_node, plan.seed, run)
        for event in islice(drawn, MANY_EVENTS // SOME_RUNS):
            returns = isinstance(recovery, Elastic) and recovery.up == "at_once"
            if returns and (event.effect == "join" or 0 < event.repair < inf):
                loads += covered < 0  # all start again for nodes that come back
            if event.effect not in ("fail", "hang", "leave"):
                continue
            count += 1
            if groups is not None and event.nodes:
                loads += groups.are_all_out(event)
            elif WORST.index(worst(event)) > covered:
                loads += 1 - moved if event.nodes else 1.0
    return loads / count if count else 1.0


class _Groups:
    """Replica groups of a job: which of them are out, and until when."""

    def __init__(self, plan: Plan) -> None:
        spec = plan.recovery
        assert isinstance(spec, ReplicaGroups)
        self._spec, self._num = spec, plan.num_nodes // spec.group_nodes
        self._out: dict[int, float] = {}
        self._back = spec.rescheduling + spec.restart + plan.heal

    def are_all_out(self, event: Event) -> bool:
        """Take the groups of an event out; whether none is left, so that all start again."""
        self._out = {group: end for group, end in self._out.items() if end > event.time}
        noticing = self._spec.hang_timeout if event.effect == "hang" else self._spec.detection
        end = event.time + event.repair + noticing + self._back
        for node in event.nodes:
            group = node // self._spec.group_nodes
            self._out[group] = max(end, self._out.get(group, 0.0))
        if len(self._out) < self._num:
            return False
        self._out = {}
        return True


def by_rule(rule: str, plan: Plan) -> int:
    """Steps between checkpoints by a rule.

    Parameters
    ----------
    rule : {"young", "daly", "simulated"}
        See `simdp.job.intervals`; or the best of those that are tried.
    plan : Plan
        The job; how often its last kind of checkpoint comes does not matter.

    Raises
    ------
    ScenarioError
        If none that is tried gets anywhere.
    """
    mttf, write = guarded_mttf_of(plan), plan.savings[-1].blocking
    most = max(int(plan.length.num_steps), 1)
    if mttf == inf:
        return most
    formula = intervals.young if rule == "young" else intervals.daly
    # Not so often that one waits for the write before.
    through = ceil(plan.savings[-1].background / plan.pace.step - 1e-9)
    steps = min(max(in_steps(formula(write, mttf), plan), through), most)
    return steps if rule != "simulated" else best_of(plan, steps, mttf_of(plan))


def in_steps(seconds: float, plan: Plan) -> int:
    """A time of training in steps, one at least."""
    return max(round(seconds / plan.pace.step), 1)


def best_of(plan: Plan, start: int, mttf: float) -> int:
    """Steps between checkpoints with which a job, or the first part of it, is done soonest.

    All intervals meet the same failures. From where it starts it is halved, or doubled, while that
    is better; around the best a parabola is laid through the logarithms of time and interval.

    Parameters
    ----------
    plan : Plan
        The job.
    start : int
        The first to be tried.
    mttf : float
        Mean time between failures [s].
    """
    num_steps = min(plan.length.num_steps, max(in_steps(TRIED_FAILURES * mttf, plan), 20 * start))

    def time(every: int) -> float:
        savings = (*plan.savings[:-1], plan.savings[-1]._replace(every=every))
        return _mean_time(replace(plan, length=Length(num_steps, False), savings=savings))

    tried = {start: time(start)}
    for factor in (0.5, 2.0):  # downhill, by halves and doubles
        best = start
        while (there := max(round(best * factor), 1)) not in tried:
            tried[there] = time(there)
            if tried[there] >= tried[best]:
                break
            best = there
    best = min(tried, key=lambda every: tried[every])
    if tried[best] == inf:
        raise ScenarioError(
            [
                "checkpoint.every: simulated finds no interval with which the job gets anywhere; "
                "make writes or the recovery faster."
            ]
        )
    around = (best * exp(log(REACH) * (2 * i / (FINE - 1) - 1)) for i in range(FINE))
    fine = {every: time(every) for every in sorted({max(round(i), 1) for i in around})}
    found = {every: took for every, took in fine.items() if took < inf}
    lowest = min(found, key=lambda every: found[every])
    if len(found) < 4:
        return lowest
    x = np.array([log(every) for every in found])
    square, slope, _ = np.polyfit(x - x.mean(), np.log(list(found.values())), 2)
    if square <= 0:
        return lowest
    top = float(np.clip(x.mean() - slope / (2 * square), x.min(), x.max()))
    return max(round(exp(top)), 1)


def _mean_time(plan: Plan) -> float:
    """Of some runs [s]; inf where one gets nowhere."""
    total = 0.0
    for number in range(TRIED_RUNS):
        run = Run(plan, number)
        try:
            total += run.play(policy_for(run)).finish
        except ScenarioError:
            return inf
    return total / TRIED_RUNS
