"""Ensembles of job runs in blocks, simulated in parallel and stored when done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from simdp.arrays import Floats
from simdp.engine.job.account import PARTS
from simdp.engine.job.planning import SOME_STEPS, guarded_mttf_of, mttf_of, on_nodes, planned
from simdp.engine.job.policies import policy_for
from simdp.engine.job.run import JobRun, Outcome
from simdp.engine.job.training import JobPlan
from simdp.engine.outcome import NOT_REACHED, not_reached, price_date
from simdp.errors import ScenarioError
from simdp.results.job import BADPUT, JobRuns, JobStretch, JobStudy, Spread
from simdp.results.metrics import Metrics, bill, energy_range
from simdp.results.result import Result
from simdp.scenario.root import Scenario
from simdp.studies.executor import PointExecutor, executor_for
from simdp.studies.store import ResultCache, Store, done_in_order, key_of, key_of_all
from simdp.version import __version__

RUNS, BLOCK = 1000, 25
"""Default number of runs of an ensemble, and of a block, which is stored at once."""

TRAINED = ("productive", "data", "lost_work", "straggler", "other")
"""Parts of a job's time in which it takes steps."""

Progress = Callable[[int, int], None]

Block = tuple[int, int]  # first run of a block, and number of runs


def job(
    scenario: Scenario,
    *,
    runs: int = RUNS,
    workers: int = 1,
    scheduler: str | None = None,
    until: float | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    train: bool = False,
) -> JobStudy:
    """Simulate a job of days many times, at every point of the scenario's sweep.

    Parameters
    ----------
    scenario : Scenario
        May have ``cluster.failures``, ``checkpoint`` and ``recovery``.
    runs : int
        Runs per point.
    workers : int
        Processes that share them; the results are the same for any number.
    scheduler : str, optional
        Address of a Dask scheduler, to use its workers instead.
    until : float, optional
        A deadline [s].
    progress : callable, optional
        Called with the number of finished runs and of all, over all points.
    store : Store, optional
        Stores finished runs and provides those of earlier calls.
    train : bool
        Whether the first run computes its numbers, through its failures.

    Raises
    ------
    ScenarioError
        If a job has no end or never reaches it, cannot train, or no scheduler answers.
    ValueError
        If there is no run or no process.
    """
    if runs < 1 or workers < 1:
        raise ValueError(f"runs and workers must be >= 1, got {runs} and {workers}")
    study = JobStudy(__version__, scenario.resolved(), until)
    points = scenario.points()
    blocks = len(points) * -(-runs // BLOCK)
    with executor_for(min(workers, blocks), scheduler) as executor:
        for number, (chosen, point) in enumerate(points):
            done = partial(_report, progress, number * runs, len(points) * runs)
            trained = _trained(point) if train else None
            ask = JobRequest(runs, until, executor, store, done)
            study.points.append(replace(_job(point, chosen, ask), trained=trained))
    return study


class JobRequest(NamedTuple):
    """Options for each point, and the executor."""

    runs: int
    until: float | None
    executor: PointExecutor
    store: Store | None
    progress: Callable[[int], None]


def _report(progress: Progress | None, before: int, total: int, done: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _trained(point: Scenario) -> Result:
    """The first run with its numbers."""
    if not point.numerics:
        raise ScenarioError("--train: numerics: false trains nothing; leave one of them out.")
    from simdp.engine.job.history import history_of, train_through

    return train_through(point, history_of(point))


def _job(point: Scenario, chosen: dict[str, object], request: JobRequest) -> JobRuns:
    if point.workload.mode == "inference":
        raise ScenarioError("workload.mode: a job trains, and inference does not; leave mode out.")
    plan = planned(point)
    outcomes = _ensemble(plan, point, request)
    return _summed(point, plan, chosen, outcomes, request.until, _strip(plan))


def _ensemble(plan: JobPlan, point: Scenario, request: JobRequest) -> list[Outcome]:
    runs = request.runs
    blocks = [(first, min(BLOCK, runs - first)) for first in range(0, runs, BLOCK)]
    keep: ResultCache[Block, list[Outcome]] | None = None
    if request.store is not None:
        key = partial(key_of_all, [key_of(point, "job")])
        keep = ResultCache(request.store, key, TypeAdapter(list[Outcome]))
    outcomes = list[Outcome]()
    for block in done_in_order(partial(_play, plan), blocks, executor=request.executor, keep=keep):
        outcomes += block
        request.progress(len(outcomes))
    return outcomes


def _play(plan: JobPlan, block: Block) -> list[Outcome]:
    first, count = block
    outcomes = []
    for number in range(first, first + count):
        run = JobRun(plan, number)
        outcomes.append(run.play(policy_for(run)))
    return outcomes


def _strip(plan: JobPlan) -> list[JobStretch]:
    """Events of the first run, simulated again."""
    run = JobRun(plan, 0, keeps_strip=True)
    run.play(policy_for(run))
    return run.account.strip or []


def _summed(
    point: Scenario,
    plan: JobPlan,
    chosen: dict[str, object],
    outcomes: Sequence[Outcome],
    until: float | None,
    strip: list[JobStretch],
) -> JobRuns:
    finishes = [outcome.finish for outcome in outcomes]
    times, parts = np.array(finishes), np.array([outcome.parts for outcome in outcomes])
    queued = np.array([outcome.queued for outcome in outcomes])
    productive = parts[:, PARTS.index("productive")]
    failures = sum(outcome.num_failures for outcome in outcomes)
    states = _states(plan, times, parts, np.array([outcome.node_seconds for outcome in outcomes]))
    spent, between = bill(plan.rates, *states), energy_range(plan.rates, *states)
    low, high = np.quantile(times, [0.05, 0.95]).tolist()
    return JobRuns(
        set=chosen,
        runs=len(outcomes),
        goodput=Spread.of((productive / times).tolist()),
        ettr=Spread.of((productive / (times - queued)).tolist()),
        finish_s=Spread.of(finishes),
        cost_usd=_spread(spent.cost_usd),
        energy_kwh=_spread(spent.energy_kwh),
        num_failures=failures / len(outcomes),
        mttf_s=float(times.sum()) / failures if failures else None,
        badput_s={part: float(parts[:, PARTS.index(part)].mean()) for part in BADPUT},
        chance_to_finish=None if until is None else float((times <= until).mean()),
        finish_interval_s=(low, high),
        assumed=_assumed(point, plan),
        finishes=finishes,
        strip=strip,
        energy_between_kwh=None
        if between is None
        else (float(between[0].mean()), float(between[1].mean())),
    )


def _states(
    plan: JobPlan, times: Floats, parts: Floats, node_seconds: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds that devices are busy, wait and rest in each run; they rest while nothing is trained.

    Nodes that are away have no cost and no energy; spares rest.
    """
    whole = node_seconds / plan.num_nodes  # as if all nodes were there for so long
    trained = parts[:, [PARTS.index(part) for part in TRAINED]].sum(axis=1)
    trained = trained * np.minimum(whole / times, 1.0)
    busy, waiting = plan.busy * trained, plan.waiting * trained
    return busy, waiting, whole - busy - waiting


def _spread(values: Floats | None) -> Spread | None:
    return None if values is None else Spread.of(values.tolist())


def _assumed(point: Scenario, plan: JobPlan) -> dict[str, Any]:
    """Figures behind the runs that are computed, not set by the scenario."""
    mttf, saving = mttf_of(plan), plan.savings[-1] if plan.savings else None
    guarded = guarded_mttf_of(plan) if saving else mttf
    paced = on_nodes(point, plan.num_nodes)
    times = Metrics(step_time_s=plan.pace.step, simulated_s=plan.pace.step * SOME_STEPS)
    return {
        "num_steps": plan.length.num_steps,
        "step_s": plan.pace.step,
        "not_reached": not_reached(paced, paced.workload.steps or 1, times).get(NOT_REACHED),
        "num_nodes": plan.num_nodes,
        "mttf_s": mttf if isfinite(mttf) else None,
        "guarded_mttf_s": guarded if saving and isfinite(guarded) else None,
        "interval_steps": saving.every if saving else None,
        "interval_s": saving.every * plan.pace.step if saving else None,
        "blocking_s": saving.blocking if saving else None,
        "background_s": saving.background if saving else None,
        "load_s": saving.load if saving else None,
        "price_date": price_date(point.cluster) if plan.rates.price is not None else None,
        "recovery": plan.recovery.model_dump(mode="json", exclude_none=True),
    }
