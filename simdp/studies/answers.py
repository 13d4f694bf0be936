"""Follow-up metrics of a run: the same run with one setting changed.

Only times are simulated, of small clusters or by the vectorised clock, which adds a few hundredths
of a second to a run. Points of a sweep only get their interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from simdp.cluster import Cluster
from simdp.cluster.stragglers import DegradedLink, SlowRank, Straggler
from simdp.engine.outcome import is_missed
from simdp.engine.recorded_script import RecordedScript, Stopwatch
from simdp.engine.simulate import is_quick, play, step_metrics, trace_of_run
from simdp.results.metrics import Metrics, busy_times, slowest, steady_step_time
from simdp.results.result import Result
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario.root import Scenario
from simdp.studies.intervals import (
    deviation,
    is_scaled,
    machine_calibration,
    pairs_of,
    residual,
    spread,
    widened,
    with_pool,
)
from simdp.studies.variants import timed_only

MAX_RANKS = 1024  # most ranks of a run that is repeated; metrics of larger ones stay None

MAX_EVENT_RANK_STEPS = 512
"""Most ranks times steps that are repeated transfer by transfer, on shared links."""

MAX_CAUSES = 16  # most stragglers that are left out one at a time
NO_COST = 1e-6  # of a step: what a straggler costs at most that the run did not reach
NEUTRAL = SlowRank(rank=0, factor=1.0)  # takes the place of a straggler that is left out
INTERVAL_STEPS = 3  # one warm-up step, and two to measure the effect of a constant


def complete(scenario: Scenario, result: Result) -> None:
    """Fill in the metrics of a single run that need further runs.

    Parameters
    ----------
    scenario : Scenario
        One point.
    result : Result
        Gets ``without_stragglers_s``, the cost of each straggler and the slowest ranks if it has
        stragglers, and ``interval_s`` if the uncertainty of its constants is known; seconds of a
        steady step.
    """
    if scenario.cluster.world_size > MAX_RANKS or scenario.strategy.has_server:
        return
    metrics = result.metrics
    if scenario.cluster.stragglers:
        even = step_time_with(scenario, [])
        result.lost = lost_to(scenario, metrics, even)
        is_measured = any(loss["seconds"] is not None for loss in result.lost)
        metrics = replace(metrics, without_stragglers_s=even if is_measured else None)
        result.slowest = _slowest(scenario, result)
    ends = interval_of(scenario, metrics.step_time_s)
    result.metrics = replace(metrics, interval_s=ends)


def step_time_with(scenario: Scenario, stragglers: Sequence[Straggler]) -> float | None:
    """Time of a steady step with other stragglers [s]; None where the run is too long to repeat."""
    even = timed_only(scenario, stragglers=list(stragglers))
    metrics = step_metrics(even)
    if metrics is not None:
        return metrics.step_time_s
    if not is_short(scenario):
        return None
    ends = StepEnds(scenario.cluster.world_size)
    play(even, TraceBuilder(keep=False, ends=ends))
    return steady_step_time(ends.ends())


def lost_to(
    scenario: Scenario, metrics: Metrics, without_all: float | None
) -> list[dict[str, Any]]:
    """Cost of each straggler, as `Result.lost`: the run again without it, with the same draws.

    ``metrics`` are those of the run with all stragglers, ``without_all`` the time of a steady step
    with none [s].
    """
    cluster, losses, step_time = scenario.cluster, list[dict[str, Any]](), metrics.step_time_s
    stragglers = cluster.stragglers
    for number, straggler in enumerate(stragglers[:MAX_CAUSES]):
        without = without_all
        if len(stragglers) > 1 and without_all is not None:
            # Later stragglers keep their numbers, and so their draws.
            others = [*stragglers[:number], NEUTRAL, *stragglers[number + 1 :]]
            without = step_time_with(scenario, others)
        saved = None if without is None else step_time - without
        missed = is_missed(straggler.rare_event(step_time), _all_steps(scenario), metrics)
        if saved is not None and missed and abs(saved) < NO_COST * step_time:
            saved = None
        losses.append({"cause": straggler.kind, **_where(straggler, cluster), "seconds": saved})
    return losses


def _where(straggler: Straggler, cluster: Cluster) -> dict[str, list[int] | None]:
    """Ranks and nodes of a straggler; None where it affects all."""
    m, rank, node = cluster.local_size, straggler.on_rank(), straggler.on_node()
    ranks: list[int] = []
    if isinstance(straggler, DegradedLink) and straggler.link is not None:
        ranks = sorted(straggler.link)
    elif rank is not None:
        ranks = [rank]
    elif node is not None:
        ranks = list(range(node * m, (node + 1) * m))
    else:
        return {"ranks": None, "nodes": None}
    ranks = [affected_rank for affected_rank in ranks if affected_rank < cluster.world_size]
    return {"ranks": ranks, "nodes": sorted({affected_rank // m for affected_rank in ranks})}


def _slowest(scenario: Scenario, result: Result) -> list[dict[str, Any]]:
    """Slowest ranks and their numbers of steps, by each rank's own work.

    Where collectives slow down compute, ranks that wait compute longer: the run is repeated without
    that slowdown.
    """
    overheads, trace = scenario.cluster.overheads, result.trace
    if overheads.compute_slowdown:
        free = overheads.model_copy(update={"compute_slowdown": 0.0})
        even = timed_only(scenario, overheads=free)
        trace = trace_of_run(even) if is_quick(even) or is_short(scenario) else None
    if trace is None or result.step_ends is None:
        return []
    n, num_steps = result.world_size, result.step_ends.shape[1] - 1
    return slowest(busy_times(trace.blocks, n, num_steps), scenario.cluster.local_size)


def is_short(scenario: Scenario) -> bool:
    """Whether a run may be repeated transfer by transfer."""
    return scenario.cluster.world_size * _all_steps(scenario) <= MAX_EVENT_RANK_STEPS


def interval_of(
    scenario: Scenario,
    step_time: float,
    recorded: RecordedScript | None = None,
    metrics: Metrics | None = None,
) -> list[float] | None:
    """Compute the 90 % interval of a step from the uncertainty of the constants [s].

    With a ``step_time`` of 1 the ends are relative to it. ``recorded`` and ``metrics``, the
    recorded first steps and the metrics of the point (`recorder_of`), save simulating it again.
    None where no uncertainty is known, or the run is too long to repeat.
    """
    is_recorded = recorded is not None and bool(recorded.ops) and metrics is not None
    if scenario.strategy.has_server:
        return None
    if scenario.cluster.world_size > MAX_RANKS and not is_recorded:
        return None
    known = with_pool(machine_calibration(scenario.cluster.machine, scenario.base), scenario)
    if not (known or is_scaled(scenario)) or not step_time:
        return None
    if is_recorded:
        stopwatch = Stopwatch(scenario, recorded, metrics)
    else:
        scenario = timed_only(scenario)
        update = {"steps": min(_num_steps(scenario), _all_steps(scenario)), "epochs": None}
        workload = scenario.workload.model_copy(update=update)
        scenario = scenario.model_copy(update={"workload": workload})
        stopwatch = Stopwatch(scenario)
    rank_steps = scenario.cluster.world_size * INTERVAL_STEPS
    if not stopwatch.repeats and rank_steps > MAX_EVENT_RANK_STEPS:
        return None
    time, *times = stopwatch.step_times([scenario, *chain.from_iterable(pairs_of(scenario, known))])
    inside = spread(time, list(zip(times[::2], times[1::2], strict=True)), residual(known))
    low, high = widened(time, inside, deviation(stopwatch.metrics, scenario, known))
    return None if low == high else [end / time * step_time for end in (low, high)]


def recorder_of(scenario: Scenario) -> RecordedScript:
    """Make a recorder of the steps that `interval_of` needs."""
    return RecordedScript(_num_steps(scenario))


def _num_steps(scenario: Scenario) -> int:
    """Steps that show the effect of a constant: with local steps, up to an average."""
    strategy = scenario.strategy
    if not strategy.averages_parameters:
        return INTERVAL_STEPS
    return max(INTERVAL_STEPS, 1 + strategy.first_alike + strategy.steps_together)


def _all_steps(scenario: Scenario) -> int:
    return scenario.workload.num_steps(scenario.cluster.world_size, scenario.base)
