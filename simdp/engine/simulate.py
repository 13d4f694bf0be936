"""simulate: play one scenario, and say what happened in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from simdp.collectives import Plan, ledger
from simdp.engine.fabrics.event import EventFabric
from simdp.engine.fabrics.vector import VectorFabric
from simdp.engine.network import Network
from simdp.engine.rank import Cohort
from simdp.engine.slowdown import Slowdown
from simdp.results import metrics
from simdp.results.result import Result
from simdp.results.trace import TraceBuilder
from simdp.scenario import Scenario
from simdp.strategies.memory import largest_microbatches, rank_memory

MAX_PROVED = 128
"""A proof takes memory that grows as the cube of the ranks; a plan does not change its nature."""

Fabric = Literal["auto", "event", "vector"]


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
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    network, trace = Network(scenario.cluster), TraceBuilder()
    plans = plans_of(scenario)
    shared = network.shared_link(plans)
    if fabric == "vector" and shared:
        raise ValueError(f"fabric 'vector' is not exact here: {shared} is shared; use 'event'")
    cohort = Cohort(scenario, slowdown)
    if fabric == "event" or shared:
        EventFabric(network, plans, slowdown, trace).play(cohort.run(progress))
        why = f"event fabric: {shared} is shared" if shared else "event fabric, as asked for"
    else:
        VectorFabric(network, slowdown, trace).play(cohort.run(progress))
        why = "vector fabric: no link is shared"
    return _result(scenario, cohort, trace, why)


def plans_of(scenario: Scenario) -> list[Plan]:
    """Every plan whose connections a run of the scenario may use.

    An algorithm's connections do not depend on the size, so that one plan stands for all.
    """
    n = scenario.cluster.world_size
    return [
        getattr(scenario.collectives, name).plan(n, 0.0, root) for name, root in calls(scenario)
    ]


def calls(scenario: Scenario) -> list[tuple[str, int]]:
    """Collectives that a run of the scenario calls: keys of ``collectives``, and roots."""
    workload, n = scenario.workload, scenario.cluster.world_size
    called = scenario.strategy.uses(n, workload, workload.dataset.length(scenario.base))
    if workload.graph.is_synchronised:
        called += [("all_gather", 0), ("all_reduce", 0)]
    return list(dict.fromkeys(called))


def prove_plans(scenario: Scenario) -> None:
    """Prove the plans of a scenario's collectives, for up to `MAX_PROVED` ranks.

    Raises
    ------
    PlanError
        If a contribution is lost, doubled or misplaced.
    """
    n, workload = scenario.cluster.world_size, scenario.workload
    nbytes = float(workload.model.num_parameters() * workload.itemsize)
    for name, root in calls(scenario) if n <= MAX_PROVED else ():
        ledger.prove(getattr(scenario.collectives, name).plan(n, nbytes, root))


def _result(scenario: Scenario, cohort: Cohort, builder: TraceBuilder, why: str) -> Result:
    workload, strategy, cluster = scenario.workload, scenario.strategy, scenario.cluster
    n, model, trace, records = cluster.world_size, workload.model, builder.build(), cohort.records
    microbatches = largest_microbatches(workload, n)
    parts = {size: rank_memory(workload, strategy, size) for size in set(microbatches)}
    peaks = [parts[size].total() for size in microbatches]
    fullest = parts[max(microbatches)]
    buckets = strategy.bucket_nbytes(
        model.parameters(), model.ready_order(), workload.gradient_itemsize
    )
    found = {
        **metrics.times(trace, n, len(records), [record.samples for record in records]),
        "bucket_bytes": buckets or None,
        "memory_bytes": {name: int(value) for name, value in fullest._asdict().items()},
        "peak_memory_bytes": [int(peak) for peak in peaks],
        "fits_memory": all(
            peak <= device.memory for peak, device in zip(peaks, cluster.devices(), strict=True)
        ),
        **metrics.numbers(records),
        "replicas_identical": cohort.replicas.identical() if cohort.replicas else None,
    }
    return Result(
        scenario=scenario.resolved(),
        set={},
        metrics=metrics.ordered(found),
        trace=trace,
        replicas=cohort.replicas.state_dicts() if cohort.replicas else None,
        fabric=why,
    )
