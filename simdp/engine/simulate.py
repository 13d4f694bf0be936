"""simulate: play one scenario, and say what happened in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.collectives.plans import ledger
from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import FIXED_SHARES, Clock, Fabric, clock_for
from simdp.engine.clocks.vector import FINE_RANKS
from simdp.engine.compute import Times
from simdp.engine.neighbourhood import Neighbourhood
from simdp.engine.network.traffic import Traffic, report
from simdp.engine.plans import most_transfers, plans_of
from simdp.engine.played import Played
from simdp.engine.readers.ledger import Ledger
from simdp.engine.readers.memory import OBSERVED_STEPS
from simdp.engine.run import Run
from simdp.engine.server import play_with_server
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment, State, segment_of
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
    stop_after: int | None = None,
    resume: State | None = None,
    keep_state: bool = False,
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
    stop_after : int, optional
        Stop after so many steps of the run.
    resume : State, optional
        Go on from there, as if the run had never stopped; on another cluster, with what was
        learned, from the instant at which it stopped.
    keep_state : bool
        Whether the result has a state to go on from.

    Returns
    -------
    Result
        Metrics, trace and, with numerics, every rank's weights.

    Raises
    ------
    ValueError
        If the scenario has a sweep, or ``fabric="vector"`` would not be exact.
    ScenarioError
        If the state is of another run, or no step is left to play.
    DeadlockError
        If nothing can move any more.
    """
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; use simdp.sweep(scenario) for all its points")
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges has no finite loss
        segment, trace = segment_of(scenario, stop_after, resume), TraceBuilder()
        segment.check(
            scenario.workload.num_steps(scenario.cluster.world_size, scenario.base, segment.start)
        )
        played = play(scenario, trace, fabric, progress, segment=segment)
        return _result(scenario, played, trace, segment, keep_state)


def play(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
    segment: Segment = WHOLE,
) -> Played:
    """Play a scenario, and leave what happened to who asks for it.

    Parameters
    ----------
    scenario, fabric, progress
        As for `simulate`.
    trace : TraceBuilder
        Takes the spans.
    times, segment
        As for `Run`.
    """
    play_it = PLAYERS[scenario.strategy.player]
    return play_it(scenario, trace, fabric, progress, times, segment)


def _play_together(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric,
    progress: Callable[[int], None] | None,
    times: Times | None,
    segment: Segment,
) -> Played:
    """All ranks go in step, and meet in collectives."""
    traffic = Traffic()
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    others = Neighbourhood(scenario) if scenario.neighbours else None
    planner = Planner(scenario.cluster, others.network if others else None)
    run = Run(scenario, slowdown, planner, times, segment)
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
    run.shows_memory = clock.fabric == "event" or run.world_size <= FINE_RANKS
    clock.play(traffic.watch(run.script(progress)))
    return Played(run, clock, traffic)


PLAYERS: dict[str, Callable[..., Played]] = {"together": _play_together, "server": play_with_server}
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
    if scenario.strategy.player != "together":  # what its ranks keep depends on the clock
        steps = {"steps": OBSERVED_STEPS, "epochs": None}
        short = {"workload": scenario.workload.model_copy(update=steps)}
        return play(scenario.model_copy(update=short), TraceBuilder(keep=False)).run.memory.ledger
    run = Run(scenario, Slowdown(scenario.cluster, scenario.seed), Planner(scenario.cluster))
    run.follow_memory()
    return run.memory.ledger


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
    scenario: Scenario, played: Played, builder: TraceBuilder, segment: Segment, keep_state: bool
) -> Result:
    run, clock, traffic, server = played
    numbers, records, cluster = run.numbers, run.numbers.records, scenario.cluster
    n, trace, ledger = cluster.world_size, builder.build(), run.memory.ledger
    charged, peaks = records[segment.first :], ledger.peak
    fullest = int(peaks.argmax())
    replicas = numbers.replicas
    alike = replicas.identical() if replicas else None
    found = {
        **metrics.times(trace, n, len(charged), [record.samples for record in charged]),
        "bucket_bytes": run.program.bucket_nbytes or None,
        "memory_bytes": summed(ledger.at_peak[:, fullest]),
        "peak_memory_bytes": [int(peak) for peak in peaks],
        "fits_memory": fits(cluster, peaks.tolist()),
        **metrics.numbers(records),
        "replicas_identical": None if scenario.strategy.one_process else alike,
    }
    return Result(
        scenario=scenario.resolved(),
        set={},
        metrics=metrics.ordered(found),
        trace=trace,
        replicas=replicas.state_dicts() if replicas else None,
        outputs=numbers.outputs or None,
        network=_network(run, clock, traffic, metrics.step_ends(trace, n, len(charged))),
        server=server,
        state=run.state(found["simulated_s"]) if keep_state else None,
    )


def _network(run: Run, clock: Clock, traffic: Traffic, ends: Floats) -> dict[str, Any]:
    """What crossed the links in a steady step, and who decided what.

    A step takes from the first rank that begins it to the last one that ends it. Of neighbours,
    what they moved in the whole time, as far as it falls on a step. `ends` as from
    `metrics.step_ends`.
    """
    num_steps = ends.shape[1] - 1
    first = metrics.num_warm_up(num_steps)
    moved = traffic.per_step(first, num_steps - first)
    seconds = float(ends[:, -1].max() - ends[:, first].min()) / (num_steps - first)
    share = seconds / float(ends.max()) if seconds else 0.0
    others = [
        (other.network, {plan: nbytes * share for plan, nbytes in other.traffic.done.items()})
        for other in clock.others
    ]
    used = report(clock.network, moved, seconds, others, clock.fabric == FIXED_SHARES)
    if traffic.timed:
        used["num_links_used"] = None  # those of the plan need not be those of the collective
    return {
        "fabric": clock.fabric,
        "why": clock.why,
        **used,
        "chosen": run.launcher.chosen(),
    }
