"""simulate: play one scenario, and say what happened in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from simdp.collectives.plans import ledger
from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import FABRICS, Clock, Fabric, clock_for
from simdp.engine.clocks.vector import FINE_RANKS
from simdp.engine.cohort import Cohort
from simdp.engine.cohort.keeping import OBSERVED_STEPS
from simdp.engine.cohort.memory import Ledger
from simdp.engine.compute import Times
from simdp.engine.neighbourhood import Neighbourhood
from simdp.engine.network.traffic import Traffic, report
from simdp.engine.plans import most_transfers, plans_of
from simdp.engine.played import Played
from simdp.engine.slowdown import Slowdown
from simdp.errors import unknown_name
from simdp.results import metrics
from simdp.results.memory import summed
from simdp.results.result import Result
from simdp.results.trace import TraceBuilder
from simdp.scenario import Scenario
from simdp.strategies.memory import fits

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
        Which clock plays the plans: every transfer an event, whole rounds as arrays (exact where
        no link is shared), or the first where links are shared and for small runs, else the second.
    progress : callable, optional
        Called with the number of finished steps.

    Returns
    -------
    Result
        Metrics, trace and, with numerics, every rank's weights.

    Raises
    ------
    ValueError
        If the scenario has a sweep, or there is no such fabric.
    ScenarioError
        If ``fabric="vector"`` would not be exact.
    DeadlockError
        If nothing can move any more.
    """
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; use simdp.sweep(scenario) for all its points")
    if fabric not in FABRICS:
        raise ValueError(unknown_name("fabric", fabric, FABRICS))
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges has no finite loss
        return _played(scenario, fabric, progress)


def _played(scenario: Scenario, fabric: Fabric, progress: Callable[[int], None] | None) -> Result:
    trace = TraceBuilder()
    return _result(scenario, play(scenario, trace, fabric, progress), trace)


def play(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None = None,
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
) -> Played:
    """Play a scenario, and leave what happened to who asks for it.

    Parameters
    ----------
    scenario, progress
        As for `simulate`.
    fabric : {"auto", "event", "vector"}, optional
        As for `simulate`; left out, the vectorised one wherever it is exact, as suits who asks for
        many times.
    trace : TraceBuilder
        Takes the spans.
    times : Times, optional
        As for `Cohort`.
    """
    return PLAYERS[scenario.strategy.player](scenario, trace, fabric, progress, times)


def _play_together(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None,
    progress: Callable[[int], None] | None,
    times: Times | None,
) -> Played:
    """All ranks go in step, and meet in collectives."""
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
        fabric or "auto",
        partial(most_transfers, scenario, planner),
        others.jobs if others else (),
        scenario.cluster.overheads,
        scenario.collectives.cost.timed,
        scenario.workload.num_steps(cohort.world_size, scenario.base) if fabric else 0,
    )
    cohort.shows_memory = clock.fabric == "event" or cohort.world_size <= FINE_RANKS
    clock.play(traffic.watch(cohort.run(progress)))
    return Played(cohort, clock, traffic)


def _play_with_server(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None,
    progress: Callable[[int], None] | None,
    times: Times | None,
) -> Played:
    """Ranks are workers of a server."""
    from simdp.engine.server import play_with_server  # and SimPy with it

    return play_with_server(scenario, trace, fabric, progress, times)


PLAYERS = {"cohort": _play_together, "server": _play_with_server}
"""Who plays a run, by ``player`` of its strategy."""


def memory_needed(scenario: Scenario) -> Ledger:
    """Follow the memory of a scenario's ranks without a clock and without numbers.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep and without numerics.

    Returns
    -------
    Ledger
        As a run would leave it.
    """
    if scenario.strategy.player != "cohort":  # what its ranks keep depends on the clock
        steps = {"steps": OBSERVED_STEPS, "epochs": None}
        short = {"workload": scenario.workload.model_copy(update=steps)}
        return play(scenario.model_copy(update=short), TraceBuilder(keep=False)).cohort.ledger
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    cohort = Cohort(scenario, slowdown, Planner(scenario.cluster))
    cohort.shows_memory = False
    for _ in cohort.run():
        if not cohort.observed:
            break
    return cohort.ledger


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


def _result(scenario: Scenario, played: Played, builder: TraceBuilder) -> Result:
    cohort, clock, traffic, server = played
    strategy, cluster = scenario.strategy, scenario.cluster
    n, trace, records = cluster.world_size, builder.build(), cohort.records
    peaks = cohort.ledger.peak
    fullest = int(peaks.argmax())
    buckets = [] if cohort.infers else strategy.sent_nbytes(cohort)
    alike = cohort.replicas.identical() if cohort.replicas else None
    found = {
        **metrics.times(trace, n, len(records), [record.samples for record in records]),
        "bucket_bytes": buckets or None,
        "memory_bytes": summed(cohort.ledger.at_peak[:, fullest]),
        "peak_memory_bytes": [int(peak) for peak in peaks],
        "fits_memory": fits(cluster, peaks.tolist()),
        **metrics.numbers(records),
        "replicas_identical": None if strategy.one_process else alike,
    }
    return Result(
        scenario=scenario.resolved(),
        set={},
        metrics=metrics.ordered(found),
        trace=trace,
        replicas=cohort.replicas.state_dicts() if cohort.replicas else None,
        outputs=cohort.outputs if cohort.infers and cohort.replicas else None,
        network=_network(cohort, clock, traffic, found["step_time_s"], found["simulated_s"]),
        server=server,
    )


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
        "chosen": cohort.launcher.chosen(),
    }
