"""Plans a job: step pace and checkpoint interval.

The formulas use the mean time between the failures that a checkpoint guards against. With restarts
or spares, these are all; with migration, those of which no node can be moved; with replica groups,
those that leave no group, or kill the whole job. The work that such a failure destroys is half an
interval in each case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from math import ceil, exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from simdp.cluster.failures import FailureEvent
from simdp.engine.job.account import TimeShares
from simdp.engine.job.policies import policy_for, worst
from simdp.engine.job.run import JobRun, events, expected_mttf
from simdp.engine.job.training import WORST, JobPlan, Length, Saving, TrainingPace, length_of
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.job.recovery import (
    RECOVERY,
    Checkpoint,
    Elastic,
    InMemoryCopies,
    Migrate,
    ReplicaGroups,
    daly,
    young,
)
from simdp.results.metrics import Metrics
from simdp.scenario.root import Scenario
from simdp.strategies.memory import checkpoint_nbytes
from simdp.workload.precision import numpy_dtype

# Checkpoints --------------------------------------------------------------------------------------


class Written(NamedTuple):
    """Checkpoint bytes: the whole, of a writing rank, and of a node of such ranks."""

    whole: float
    per_rank: float
    per_node: float


def written(scenario: Scenario) -> Written:
    """Checkpoint bytes: one group of ranks writes its shards; unsharded, one rank writes all."""
    checkpoint, partition = scenario.checkpoint, scenario.program.partition
    whole = checkpoint.size if checkpoint is not None else None
    if whole is None:
        whole = checkpoint_nbytes(scenario.workload, scenario.program.outer_optimizer)
    cluster, num_writers = scenario.cluster, checkpoint.writers if checkpoint is not None else None
    if num_writers is not None:
        return Written(
            whole, whole / num_writers, whole / num_writers * -(-num_writers // cluster.num_nodes)
        )
    writers = partition.num_places if partition is not None else 1
    per_rank = whole / writers
    return Written(whole, per_rank, per_rank * min(writers, cluster.local_size))


def over_storage(checkpoint: Checkpoint, what: Written) -> float:
    """Time to write a checkpoint to storage, or to load it [s]."""
    if checkpoint.write is not None:
        return checkpoint.write
    assert checkpoint.storage is not None
    per_node = what.per_node / checkpoint.per_node if checkpoint.per_node else 0.0
    return max(what.whole / checkpoint.storage, per_node)


def to_hosts(scenario: Scenario, what: Written) -> float:
    """Time of the writing ranks' copies to their hosts [s]."""
    host = scenario.cluster.host
    return max(host.copying(what.per_rank), what.per_node / host.memory_bandwidth)


def savings(scenario: Scenario, in_steps: Callable[[float], int], every: int) -> tuple[Saving, ...]:
    """All kinds of checkpoints of a job; ``in_steps`` rounds a time [s] to steps."""
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return ()
    what, load = written(scenario), scenario.recovery.load if scenario.recovery else None
    copied = what._replace(
        whole=what.whole * checkpoint.incremental,
        per_rank=what.per_rank * checkpoint.incremental,
        per_node=what.per_node * checkpoint.incremental,
    )
    write, copy = over_storage(checkpoint, copied), to_hosts(scenario, copied)
    if checkpoint.mode == "asynchronous":
        times = copy if checkpoint.host_copy is None else checkpoint.host_copy, write
    else:
        times = (max(write, copy) if checkpoint.write is None else write), 0.0
    load = over_storage(checkpoint, what) if load is None else load
    on_storage = Saving(every, *times, load)
    return (*(_copies(level, what, in_steps) for level in checkpoint.levels), on_storage)


def _copies(level: InMemoryCopies, what: Written, in_steps: Callable[[float], int]) -> Saving:
    every = level.every if isinstance(level.every, int) else in_steps(level.every)
    time = level.write if level.bandwidth is None else what.per_node / level.bandwidth
    assert time is not None
    return Saving(every, time, 0.0, time, level.tolerates)


FEW_STEPS, SOME_STEPS = 2, 9
"""Simulated steps: one to warm up and a steady one; more if steps are random."""

MAX_SIZES = 12
"""Numbers of nodes that are simulated; others use the next smaller one."""


class Paces(NamedTuple):
    """Paces by number of nodes; fractions of a step on all nodes that compute, and that wait."""

    by_nodes: dict[int, TrainingPace]
    busy: float
    waiting: float


def paces(scenario: Scenario, counts_samples: bool) -> Paces:
    """Simulate a step on all nodes, and on the numbers of nodes of an elastic job.

    ``counts_samples`` is that of `simdp.engine.job.training.Length`.
    """
    cluster, recovery = scenario.cluster, scenario.recovery
    most = cluster.num_nodes
    sizes = able(scenario, recovery.min_nodes) if isinstance(recovery, Elastic) else [most]
    quorum = _between_groups(scenario) if isinstance(recovery, ReplicaGroups) else 0.0
    paces_by_size, busy, waiting = {}, 1.0, 0.0
    for size in sizes:
        samples = scenario.workload.samples_per_step(size * cluster.local_size)
        all_samples = scenario.workload.samples_per_step(cluster.world_size)
        headway = samples / all_samples if counts_samples else 1.0
        metrics = _steady(of := on_nodes(scenario, size))
        step = metrics.step_time_s
        parts, whole = _parts(of, step), step + quorum
        shares = TimeShares(*(part / whole for part in (step - sum(parts), *parts, quorum)))
        paces_by_size[size] = TrainingPace(whole, shares, headway)
        if size == most:
            busy, waiting = metrics.busy_s / whole, metrics.waiting_s / whole
    return Paces(paces_by_size, busy, waiting)


MESSAGES = 4
"""Messages per step with replica groups: a round trip for the quorum, and one for the vote."""


def _between_groups(scenario: Scenario) -> float:
    """Additional time per step of replica groups [s]: quorum, vote, and any exchange."""
    recovery, cluster = scenario.recovery, scenario.cluster
    assert isinstance(recovery, ReplicaGroups)
    seconds = recovery.quorum
    if seconds is None:
        inter = cluster.inter_node
        links = [] if inter is None else inter.link
        links = links if isinstance(links, list) else [links]
        seconds = MESSAGES * max((link.alpha for link in links), default=0.0)
    num_groups = cluster.num_nodes // recovery.group_nodes
    if recovery.exchange_bandwidth is None:
        return seconds
    workload, partition = scenario.workload, scenario.program.partition
    whole = (
        workload.model.num_parameters()
        * numpy_dtype(workload.precision.gradient_dtype(workload.dtype)).itemsize
    )
    per_node = whole / (partition.num_places if partition is not None else 1) * cluster.local_size
    return seconds + 2 * (num_groups - 1) / num_groups * per_node / recovery.exchange_bandwidth


def able(scenario: Scenario, least: int) -> list[int]:
    """Numbers of nodes, ascending, on which the strategy can train; at most `MAX_SIZES`."""
    cluster, workload, strategy = scenario.cluster, scenario.workload, scenario.strategy
    most = cluster.num_nodes
    sizes = [
        size
        for size in range(least, most + 1)
        if strategy.problem_with(size * cluster.local_size, workload) is None
    ]
    if len(sizes) <= MAX_SIZES:
        return sizes
    last = len(sizes) - 1
    return [sizes[last * i // (MAX_SIZES - 1)] for i in range(MAX_SIZES)]


def on_nodes(scenario: Scenario, num_nodes: int) -> Scenario:
    """Make the timing-only scenario of a few steps on a number of nodes that sets the pace."""
    cluster, workload = scenario.cluster, scenario.workload
    strategy = scenario.strategy.after_warmup()
    drawn = cluster.stragglers or workload.input or strategy.has_server
    differ = drawn or bool(workload.lengths(scenario.seed, scenario.base))
    steps = strategy.whole_periods(SOME_STEPS if differ else FEW_STEPS)
    size = num_nodes * cluster.local_size
    changed: dict[str, Any] = {
        "cluster": cluster.model_copy(update={"world_size": size, "failures": []}),
        "workload": workload.model_copy(update={"steps": steps, "epochs": None}),
        "strategy": strategy,
        "numerics": False,
        "measured": None,
        "sweep": {},
    }
    return scenario.model_copy(update=changed)


def _parts(scenario: Scenario, step: float) -> tuple[float, float]:
    """Parts of a step that wait for batches and for slow ranks [s]."""
    cluster, workload = scenario.cluster, scenario.workload
    data = straggler = 0.0
    if workload.input is not None:
        without: dict[str, Any] = {"workload": workload.model_copy(update={"input": None})}
        data = max(step - _time(scenario, without), 0.0)
    if cluster.stragglers:
        without = {"cluster": cluster.model_copy(update={"stragglers": []})}
        straggler = min(max(step - _time(scenario, without), 0.0), step - data)
    return data, straggler


def _time(scenario: Scenario, without: dict[str, object]) -> float:
    return _steady(scenario.model_copy(update=without)).step_time_s


def _steady(scenario: Scenario) -> Metrics:
    return simulate(scenario).metrics


# Checkpoint interval ------------------------------------------------------------------------------

MANY_EVENTS, SOME_RUNS = 4000, 20
"""Events and runs of an estimated mean time between failures, where there is no formula."""

TRIED_RUNS, TRIED_FAILURES = 32, 150
"""Runs per tried interval, and failures in each; all intervals see the same failures."""

FINE, REACH = 7, 1.6
"""Number of intervals tried last, and their largest factor from the best one before."""


def mttf_of(plan: JobPlan) -> float:
    """Mean time between failures of all nodes of a job without spares [s]; inf without failures.

    From the rates, or else estimated from some runs.
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


def guarded_mttf_of(plan: JobPlan) -> float:
    """Mean time between failures after which a job loads the last kind of checkpoint [s].

    inf if there are none. After all other failures the job continues from a peer's state, on a node
    that took over, or from a copy in memory.
    """
    mttf = mttf_of(plan)
    share = 1.0 if mttf == inf else _share_guarded(plan)
    return mttf / share if share else inf


def _share_guarded(plan: JobPlan) -> float:
    """Loads of the last kind of checkpoint per failure, estimated from some runs."""
    recovery, kept = plan.recovery, plan.savings[:-1]
    always = not isinstance(recovery, Elastic | Migrate | ReplicaGroups)
    if not kept and (always or (isinstance(recovery, Elastic) and recovery.rejoin == "checkpoint")):
        return 1.0
    covered = max((WORST.index(saving.tolerates) for saving in kept), default=-1)
    moved = recovery.share if isinstance(recovery, Migrate) else 0.0
    count, loads = 0, 0.0
    for run in range(SOME_RUNS):
        groups = _GroupState(plan) if isinstance(recovery, ReplicaGroups) else None
        drawn = events(plan.failures, plan.num_nodes, plan.devices_per_node, plan.seed, run)
        for event in islice(drawn, MANY_EVENTS // SOME_RUNS):
            returns = isinstance(recovery, Elastic) and recovery.rejoin == "at_once"
            if returns and (event.effect == "join" or 0 < event.repair < inf):
                loads += covered < 0  # all restart when nodes come back
            if event.effect not in ("fail", "hang", "leave"):
                continue
            count += 1
            if groups is not None and event.nodes:
                loads += groups.are_all_out(event)
            elif WORST.index(worst(event)) > covered:
                loads += 1 - moved if event.nodes else 1.0
    return loads / count if count else 1.0


class _GroupState:
    """Absent replica groups of a job, with the ends of their absence."""

    def __init__(self, plan: JobPlan) -> None:
        spec = plan.recovery
        assert isinstance(spec, ReplicaGroups)
        self._spec, self._num = spec, plan.num_nodes // spec.group_nodes
        self._out: dict[int, float] = {}
        self._back = spec.rescheduling + spec.restart + plan.heal

    def are_all_out(self, event: FailureEvent) -> bool:
        """Take the groups of an event out; return whether none is left, so that all restart."""
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


def by_rule(rule: str, plan: JobPlan) -> int:
    """Steps between checkpoints by a rule.

    Parameters
    ----------
    rule : {"young", "daly", "simulated"}
        A formula of `simdp.job.recovery`; or the best of some simulated intervals.
    plan : JobPlan
        The job; the interval of its last kind of checkpoint is ignored.

    Raises
    ------
    ScenarioError
        If the job makes no progress with any tried interval.
    """
    mttf, write = guarded_mttf_of(plan), plan.savings[-1].blocking
    most = max(int(plan.length.num_steps), 1)
    if mttf == inf:
        return most
    formula = young if rule == "young" else daly
    # Long enough for the previous write to finish.
    through = ceil(plan.savings[-1].background / plan.pace.step - 1e-9)
    steps = min(max(in_steps(formula(write, mttf), plan), through), most)
    return steps if rule != "simulated" else best_of(plan, steps, mttf_of(plan))


def in_steps(seconds: float, plan: JobPlan) -> int:
    """Convert a time of training to steps, at least one."""
    return max(round(seconds / plan.pace.step), 1)


def best_of(plan: JobPlan, start: int, mttf: float) -> int:
    """Steps between checkpoints that minimize the time of a job, or of its first part.

    All intervals see the same failures. The start is halved, or doubled, while that is better; then
    a parabola is fitted to the logarithms of time and interval around the best. ``mttf`` is the
    mean time between failures [s].
    """
    num_steps = min(plan.length.num_steps, max(in_steps(TRIED_FAILURES * mttf, plan), 20 * start))

    def time(every: int) -> float:
        savings = (*plan.savings[:-1], plan.savings[-1]._replace(every=every))
        return _mean_time(replace(plan, length=Length(num_steps, False), savings=savings))

    tried = {start: time(start)}
    for factor in (0.5, 2.0):  # descend by halving and doubling
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
                "checkpoint.every: simulated finds no interval with which the job makes progress; "
                "make writes or the recovery faster."
            ]
        )
    around = (best * exp(log(REACH) * (2 * i / (FINE - 1) - 1)) for i in range(FINE))
    fine = {every: time(every) for every in sorted({max(round(i), 1) for i in around})}
    finite = {every: took for every, took in fine.items() if took < inf}
    lowest = min(finite, key=lambda every: finite[every])
    if len(finite) < 4:
        return lowest
    x = np.array([log(every) for every in finite])
    square, slope, _ = np.polyfit(x - x.mean(), np.log(list(finite.values())), 2)
    if square <= 0:
        return lowest
    top = float(np.clip(x.mean() - slope / (2 * square), x.min(), x.max()))
    return max(round(exp(top)), 1)


def _mean_time(plan: JobPlan) -> float:
    """Mean time of some runs [s]; inf if one makes no progress."""
    total = 0.0
    for number in range(TRIED_RUNS):
        run = JobRun(plan, number)
        try:
            total += run.play(policy_for(run)).finish
        except ScenarioError:
            return inf
    return total / TRIED_RUNS


def planned(scenario: Scenario) -> JobPlan:
    """Simulate a step, and derive all times of a job.

    Parameters
    ----------
    scenario : Scenario
        Valid, without a sweep.

    Raises
    ------
    ScenarioError
        If the job has no end.
    """
    cluster, length = scenario.cluster, length_of(scenario)
    recovery = scenario.recovery or RECOVERY["restart"].model_validate({})
    steps = paces(scenario, length.counts_samples)
    plan = JobPlan(
        length,
        (),
        steps.by_nodes,
        cluster.num_nodes,
        cluster.local_size,
        recovery,
        tuple(cluster.failures),
        scenario.seed,
        _healing(scenario) if isinstance(recovery, ReplicaGroups) else 0.0,
        cluster.rates(),
        steps.busy,
        steps.waiting,
    )
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return plan
    every = checkpoint.every

    def with_every(steps: int) -> JobPlan:
        return replace(plan, savings=savings(scenario, lambda t: in_steps(t, plan), steps))

    if isinstance(every, str):
        return with_every(by_rule(every, with_every(1)))
    return with_every(every if isinstance(every, int) else in_steps(every, plan))


def _healing(scenario: Scenario) -> float:
    """Time in which a group copies the state from a peer [s], all its nodes at once."""
    recovery, cluster = scenario.recovery, scenario.cluster
    assert isinstance(recovery, ReplicaGroups)
    what = written(scenario)
    per_node = what.whole if what.per_rank == what.whole else what.per_node
    if recovery.heal_bandwidth is not None:
        return per_node / recovery.heal_bandwidth
    inter = cluster.inter_node
    if inter is None:
        return cluster.host.copying(per_node)
    links = inter.link if isinstance(inter.link, list) else [inter.link]
    return per_node / (min(link.bandwidth for link in links) * inter.links_per_node)
