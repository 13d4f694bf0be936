"""simulate: play one scenario, and say what happened in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from simdp.cluster import Cluster
from simdp.collectives.plans import ledger
from simdp.engine.choice import Planner
from simdp.engine.clocks import Clock, Fabric, clock_for
from simdp.engine.cohort import Cohort
from simdp.engine.compute import Times
from simdp.engine.neighbourhood import Neighbourhood
from simdp.engine.network.traffic import Traffic, report
from simdp.engine.plans import most_transfers, plans_of
from simdp.engine.slowdown import Slowdown
from simdp.results import metrics
from simdp.results.result import Result
from simdp.results.trace import TraceBuilder
from simdp.scenario import Scenario
from simdp.strategies.memory import largest_microbatches, rank_memory

MAX_PROVED = 128
"""A proof takes memory that grows as the cube of the ranks; a plan does not change its nature."""


def simulate(
    scenario: Scenario,
    *,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Simulate one scenario.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep; a sweep goes through `simdp.sweep`.
    fabric : {"auto", "event", "vector"}
        Which clock plays the plans: whole rounds as arrays, every transfer an event, or the first
        where it is exact, which is where no link is shared.
    progress : callable, optional
        Called with the number of finished steps.

    Returns
    -------
    Result
        Metrics, trace and, with numerics, every rank's weights.

    Raises
    ------
    ValueError
        If the scenario has a sweep, or ``fabric="vector"`` would not be exact.
    DeadlockError
        If nothing can move any more.
    """
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; use simdp.sweep(scenario) for all its points")
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges has no finite loss
        return _played(scenario, fabric, progress)


def _played(scenario: Scenario, fabric: Fabric, progress: Callable[[int], None] | None) -> Result:
    trace = TraceBuilder()
    cohort, clock, traffic = play(scenario, trace, fabric, progress)
    return _result(scenario, cohort, trace, clock, traffic)


def play(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
) -> tuple[Cohort, Clock, Traffic]:
    """Play a scenario, and leave what happened to who asks for it.

    Parameters
    ----------
    scenario, fabric, progress
        As for `simulate`.
    trace : TraceBuilder
        Takes the spans.
    times : Times, optional
        As for `Cohort`.
    """
    traffic = Traffic()
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    others = Neighbourhood(scenario) if scenario.neighbours else None
    planner = Planner(scenario.cluster, others.network if others else None)
    cohort = Cohort(scenario, slowdown, planner, times)
    plans = plans_of(scenario, planner)
    clock = clock_for(
        planner.network,
        plans,
        slowdown,
        trace,
        fabric,
        partial(most_transfers, scenario, planner),
        others.jobs if others else (),
        scenario.cluster.overheads,
        scenario.collectives.cost.timed,
    )
    clock.play(traffic.watch(cohort.run(progress)))
    return cohort, clock, traffic


def prove_plans(scenario: Scenario) -> None:
    """Prove the plans of a scenario's collectives, for up to `MAX_PROVED` ranks.

    Raises
    ------
    PlanError
        If a contribution is lost, doubled or misplaced.
    """
    small = scenario.cluster.world_size <= MAX_PROVED
    planner, workload = Planner(scenario.cluster), scenario.workload
    nbytes = float(workload.model.num_parameters() * workload.itemsize)
    for name, root in scenario.calls() if small else ():
        ledger.prove(planner.plan(getattr(scenario.collectives, name), nbytes, root))


def _result(
    scenario: Scenario, cohort: Cohort, builder: TraceBuilder, clock: Clock, traffic: Traffic
) -> Result:
    workload, strategy, cluster = scenario.workload, scenario.strategy, scenario.cluster
    n, trace, records = cluster.world_size, builder.build(), cohort.records
    microbatches = largest_microbatches(workload, n)
    parts = {size: rank_memory(workload, strategy, size) for size in dict.fromkeys(microbatches)}
    peaks = [parts[size].total() for size in microbatches]
    fullest = parts[max(microbatches)]
    buckets = strategy.sent_nbytes(cohort)
    found = {
        **metrics.times(trace, n, len(records), [record.samples for record in records]),
        "bucket_bytes": buckets or None,
        "memory_bytes": {name: int(value) for name, value in fullest._asdict().items()},
        "peak_memory_bytes": [int(peak) for peak in peaks],
        "fits_memory": _fits_memory(cluster, peaks),
        **metrics.numbers(records),
        "replicas_identical": cohort.replicas.identical() if cohort.replicas else None,
    }
    return Result(
        scenario=scenario.resolved(),
        set={},
        metrics=metrics.ordered(found),
        trace=trace,
        replicas=cohort.replicas.state_dicts() if cohort.replicas else None,
        network=_network(cohort, clock, traffic, found["step_time_s"], found["simulated_s"]),
    )


def _fits_memory(cluster: Cluster, peaks: Sequence[float]) -> bool:
    """Whether every device has room for what all of its ranks keep at their peaks [bytes]."""
    k, devices = cluster.ranks_per_device, cluster.devices()
    held = [sum(peaks[first : first + k]) for first in range(0, len(peaks), k)]
    return all(nbytes <= device.memory for nbytes, device in zip(held, devices[::k], strict=True))


def _network(
    cohort: Cohort, clock: Clock, traffic: Traffic, step_time: float, simulated: float
) -> dict[str, Any]:
    """What crossed the links in a steady step, and who decided what.

    Of neighbours, what they moved in the whole time, as far as it falls on a step.
    """
    num_steps = len(cohort.records)
    first = metrics.num_warm_up(num_steps)
    moved = traffic.per_step(first, num_steps - first)
    share = step_time / simulated if simulated else 0.0
    others = [
        (other.network, {plan: nbytes * share for plan, nbytes in other.traffic.done.items()})
        for other in clock.others
    ]
    return {
        "fabric": clock.fabric,
        "why": clock.why,
        **report(clock.network, moved, step_time, others),
        "chosen": cohort.launcher.planner.chosen(),
    }
