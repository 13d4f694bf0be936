"""Simulates a scenario and returns its result."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from simdp.collectives import Layout, Plan
from simdp.collectives import plans as ledger
from simdp.engine.clocks.clock import FABRICS, Clock, Fabric, OtherJob, clock_for
from simdp.engine.clocks.vector import FINE_RANKS
from simdp.engine.collective import Launcher, Planner
from simdp.engine.compute.profile_times import Times, times_of
from simdp.engine.compute.roofline import roofline_of
from simdp.engine.interpreters.costs import Rehearsals
from simdp.engine.interpreters.footprints import fits_host
from simdp.engine.interpreters.memory import OBSERVED_STEPS, MemoryLedger
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import ClockOp, ClockWait, ComputeWork, Feed, Launch
from simdp.engine.outcome import (
    cost_of,
    network_of,
    not_reached,
    participation,
    rates,
    spared_tiers,
    taken_as_whole,
    target_of,
    too_fast,
    unchecked_host_memory,
    unlikely_steps,
)
from simdp.engine.replicas import identical, state_dicts
from simdp.engine.run import Run, RunMode, RunOutput, program_of
from simdp.engine.samples import BatchSamples
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment, State, segment_of
from simdp.errors import unknown_name
from simdp.results import metrics
from simdp.results.memory import LaunchedKernels, summed
from simdp.results.metrics import Metrics, noise_scale
from simdp.results.result import Result
from simdp.results.trace import Trace, TraceBuilder, TraceToCome
from simdp.scenario.loading import of as scenario_of
from simdp.scenario.placement import deal_nodes, vertices, with_neighbours
from simdp.scenario.remarks import remarks
from simdp.scenario.root import Scenario
from simdp.steps.program import Program
from simdp.strategies.memory import fits


@dataclass
class Common:
    """Compute times, rehearsed steps and memory, which do not depend on links and collectives."""

    times: Times | None = None
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    ledger: MemoryLedger | None = None


_KNOWN: deque[tuple[Program, tuple[Any, ...], Common]] = deque(maxlen=8)


def common_to(scenario: Scenario) -> Common:
    """State that a scenario shares with earlier ones.

    The scenario has no numerics, and its strategy must not depend on nominal times, since these
    depend on the network.
    """
    cluster, program = scenario.cluster, scenario.program
    of = cluster.device, cluster.ranks_per_device, cluster.allocator
    for other, devices, common in _KNOWN:
        if other is program and devices == of:
            return common
    ledgers = (  # memory is the same on other devices
        earlier.ledger
        for other, devices, earlier in _KNOWN
        if other is program and devices[1:] == of[1:] and earlier.ledger is not None
    )
    common = Common(ledger=next(ledgers, None))
    _KNOWN.append((program, of, common))
    return common


def plans_of(
    scenario: Scenario,
    planner: Planner,
    program: Program | None = None,
    segment: Segment = WHOLE,
) -> dict[int, list[Plan]]:
    """Plans with all connections that a run of the scenario may use, by communication stream.

    Connections of an algorithm do not depend on the size, so that one plan represents all. If sizes
    determine the algorithm, the plans of all called sizes are returned; if batches determine the
    ranks, or times the buckets, those of the script.
    """
    program = program or scenario.program
    algorithms = [(getattr(scenario.collectives, name), root) for name, root in program.calls]
    in_groups = [name for several in program.groups for name in several.collectives]
    kinds = [algorithm.kind for algorithm, _ in algorithms]
    kinds += [getattr(scenario.collectives, name).kind for name in in_groups]
    if "auto" not in kinds and not program.scatters:
        streams = {0: [planner.plan(algorithm, 0.0, root) for algorithm, root in algorithms]}
        for several in program.groups:
            of_groups = planner.of_groups(several.ranks)
            streams.setdefault(several.stream, []).extend(
                of_groups.plan(getattr(scenario.collectives, name), 0.0)
                for name in several.collectives
            )
        return streams
    is_whole = segment is WHOLE and program is scenario.program
    if program.scatters and is_whole and "auto" not in kinds and not program.facts.foreseen:
        return _scattered(scenario, planner)
    return _launched_plans(scenario, planner, program, segment)


_SCATTERED: deque[tuple[Scenario, Layout, dict[int, list[Plan]]]] = deque(maxlen=4)


def _scattered(scenario: Scenario, planner: Planner) -> dict[int, list[Plan]]:
    """Plans of one process for all devices, which scenarios with other times share."""
    for other, layout, streams in _SCATTERED:
        same = other.workload is scenario.workload and other.program is scenario.program
        same = same and other.seed == scenario.seed and layout == planner.layout
        if same and other.collectives == scenario.collectives:
            return streams
    streams = _launched_plans(scenario, planner, scenario.program, WHOLE)
    _SCATTERED.append((scenario, planner.layout, streams))
    return streams


def _launched_plans(
    scenario: Scenario, planner: Planner, program: Program, segment: Segment
) -> dict[int, list[Plan]]:
    streams: dict[int, dict[Plan, None]] = {0: {}}
    if program.scatters or program.facts.foreseen:
        timed = scenario.model_copy(update={"numerics": False})
        slowdown = Slowdown(scenario.cluster, scenario.seed)
        mode = RunMode(follows_memory=False)  # memory launches nothing
        run = Run(timed, slowdown, planner, segment=segment, mode=mode)
        for op in run.script():
            if isinstance(op, Launch):
                streams.setdefault(op.stream, {})[op.plan] = None
    else:
        launcher = Launcher(scenario.collectives, planner, program.groups)
        for call in program.called:
            plan = launcher.plan(call.collective, call.nbytes, call.root, call.group)
            streams.setdefault(launcher.stream_of(call.group), {})[plan] = None
    return {stream: list(plans) for stream, plans in streams.items()}


def most_transfers(scenario: Scenario, planner: Planner) -> int:
    """Count the transfers of the longest collective, one of all gradients."""
    workload, collectives = scenario.workload, scenario.collectives
    nbytes = float(workload.model.num_parameters() * workload.itemsize)
    called = [
        (getattr(collectives, name), root)
        for name, root in scenario.calls()
        if not collectives.cost_of(name).timed
    ]
    plans = [planner.plan(algorithm, nbytes, root) for algorithm, root in called]
    for several in scenario.program.groups:
        of_groups = planner.of_groups(several.ranks)
        names = [name for name in several.collectives if not collectives.cost_of(name).timed]
        plans += [of_groups.plan(getattr(collectives, name), nbytes) for name in names]
    return max((plan.num_transfers for plan in plans), default=0)


# simulate -----------------------------------------------------------------------------------------

Listen = Callable[[Iterator[ClockOp]], Iterator[ClockOp]]

MAX_PROVED = 128
"""Ranks up to which plans are proved: the memory of a proof grows with their cube."""

MAX_PROVED_ROOTS = 3
"""Roots per collective with proved plans, to limit the time."""

MAX_PROVED_NBYTES = 2.0**26
"""Size of proved plans [bytes]: some have more pieces for more bytes, but the same structure."""


def simulate(
    scenario: Scenario | str | os.PathLike[str],
    *,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
    stop_after: int | None = None,
    resume: State | None = None,
    keep_state: bool = False,
    keep_trace: bool | None = None,
    listen: Listen | None = None,
) -> Result:
    """Simulate one scenario.

    Parameters
    ----------
    scenario : Scenario, or path-like
        Without a sweep, else use `simdp.sweep`; a path or a name is for `simdp.load_scenario`.
    fabric : {"auto", "event", "vector"}
        Clock of the run: transfers as events; rounds as arrays, exact where no link is shared; or
        events where links are shared and for small runs with numbers, else arrays.
    progress, listen : callable, optional
        Called with the number of finished steps; as for `times_alone`.
    stop_after, resume : int, State, optional
        Number of steps after which the run stops; state to resume from. See `simdp.engine.state`.
    keep_state : bool
        Whether the result has a state to resume from.
    keep_trace : bool, optional
        Whether spans are recorded at once; default: a timing-only run records them on demand.

    Returns
    -------
    Result
        Metrics, trace and, with numerics, every rank's weights.

    Raises
    ------
    TypeError, ValueError
        If ``scenario`` is no scenario, or has a sweep; if there is no such fabric.
    ScenarioError
        If ``fabric="vector"`` would not be exact, the state is of another run, or no step is left.
    DeadlockError
        If ranks wait for events that cannot happen.
    """
    scenario = scenario_of(scenario)
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; use simdp.sweep(scenario) for all its points")
    if fabric not in FABRICS:
        raise ValueError(unknown_name("fabric", fabric, FABRICS))
    scenario = rebalanced(scenario)
    segment = segment_of(scenario, stop_after, resume)
    segment.check(scenario)
    if fabric == "auto" and stop_after is None and (resume is None or segment.goes_on):
        result = times_alone(scenario, progress, listen)
        if result is not None:  # the metrics of a whole run, which are the same without the rest
            if keep_trace or segment.past is not None:
                result.trace = trace_of_run(scenario)
            if keep_state:
                result.state = simulate_segment(scenario, segment).state
            return result
    return simulate_segment(scenario, segment, fabric, progress, keep_state)


def simulate_segment(
    scenario: Scenario,
    segment: Segment,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
    keep_state: bool = True,
) -> Result:
    """Simulate a part of a run; arguments as for `simulate`, with a checked segment."""
    with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges has no finite loss
        trace = TraceBuilder()
        played = play(scenario, trace, fabric, progress, segment=segment)
        return _result(scenario, played, trace, segment, keep_state)


def times_alone(
    scenario: Scenario,
    progress: Callable[[int], None] | None = None,
    listen: Listen | None = None,
) -> Result | None:
    """Metrics of a timing-only run, with a trace that is recorded on demand.

    None with numerics, or if transfers must be simulated one by one, or if operations depend on the
    network. ``listen`` receives the script and must yield it; it is not called for None. Other
    arguments as for `simulate`.
    """
    played = _timed(scenario, progress, listen, follows_memory=True)
    if played is None:
        return None
    scenario = played.run.scenario
    result = _result(scenario, played, played.clock.trace, WHOLE, False)
    result.trace = TraceToCome(partial(trace_of_run, scenario))
    return result


def step_metrics(scenario: Scenario) -> Metrics | None:
    """Time metrics of `times_alone`; None where that returns None."""
    played = _timed(scenario)
    if played is None:
        return None
    samples = [record.samples for record in played.run.numbers.records]
    trace = played.clock.trace.build()
    return metrics.times(trace, scenario.cluster.world_size, len(samples), samples)


def rebalanced(scenario: Scenario) -> Scenario:
    """The scenario with measured speeds for rebalancing; the same object if none are needed."""
    rule = scenario.workload.rebalance
    if rule is None or not rule.is_open:
        return scenario
    from simdp.engine.rebalancing import with_measured_speeds  # few runs need it

    return with_measured_speeds(scenario, rule)


def is_quick(scenario: Scenario) -> bool:
    """Whether `times_alone` simulates a scenario."""
    return _quick_clock(rebalanced(scenario)) is not None


def _timed(
    scenario: Scenario,
    progress: Callable[[int], None] | None = None,
    listen: Listen | None = None,
    follows_memory: bool = False,
) -> RunOutput | None:
    """Simulate a timing-only run; its memory is followed without the clock, once per `Common`."""
    scenario = rebalanced(scenario)
    quick = _quick_clock(scenario)
    if quick is None:
        return None
    clock, planner = quick
    common, traffic = common_to(scenario), Traffic()
    mode = RunMode(follows_memory=False, is_quick=True)
    run = Run(scenario, clock.slowdown, planner, common.times, mode=mode)
    common.times, run.costs.rehearsals = run.times, common.rehearsals
    if follows_memory:
        if common.ledger is None:
            common.ledger = _followed(run)
        run.memory.ledger = common.ledger
    script = traffic.watch(run.script(progress))
    clock.play(script if listen is None else listen(script))
    return RunOutput(run, clock, traffic)


def _quick_clock(scenario: Scenario) -> tuple[Clock, Planner] | None:
    """The vectorised clock of a timing-only run; None if it is not exact."""
    together = not scenario.strategy.has_server and not scenario.neighbours
    if scenario.numerics or not together or scenario.program.facts.foreseen:
        return None
    if scenario.strategy.in_one_process or scenario.cluster.world_size > FINE_RANKS:
        return None
    planner = Planner(scenario.cluster, seed=scenario.seed)
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    clock = _clock(scenario, planner, slowdown, TraceBuilder(), None)
    return None if clock.fabric == "event" else (clock, planner)


def _launched(scenario: Scenario) -> LaunchedKernels:
    from simdp.engine.outcome import launched  # few runs need it

    return launched(scenario)


def trace_of_run(scenario: Scenario) -> Trace:
    """Spans of a run with known metrics; arguments as for `simulate`."""
    trace = TraceBuilder()
    play(scenario, trace, "auto")
    return trace.build()


def play(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None = None,
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
    segment: Segment = WHOLE,
    listen: Listen | None = None,
) -> RunOutput:
    """Simulate a scenario, without a summary of the results.

    Parameters
    ----------
    scenario, progress
        As for `simulate`.
    fabric : {"auto", "event", "vector"}, optional
        As for `simulate`; default: the vectorised one wherever it is exact.
    trace : TraceBuilder
        Receives the spans.
    times, segment
        As for `Run`.
    listen : callable, optional
        Receives the script of synchronous ranks, and must yield it. Then memory is not followed.
    """
    scenario = rebalanced(scenario)
    if scenario.strategy.has_server:
        from simdp.engine.server.run import play_with_server  # few runs need it

        return play_with_server(scenario, trace, fabric, progress, times, segment)
    traffic, jobs, network = Traffic(), list[OtherJob](), None
    slowdown = Slowdown(scenario.cluster, scenario.seed)
    if scenario.neighbours:
        network, jobs = neighbours_of(scenario)
    planner = Planner(scenario.cluster, network, seed=scenario.seed)
    planner.network.first_step = segment.first
    plans = None
    if segment.participants is not None:  # other ranks may launch other plans
        times = times or times_of(
            scenario.workload, scenario.strategy, roofline_of(scenario.cluster)
        )
        program = program_of(scenario, planner, times, BatchSamples(scenario), segment)
        plans = plans_of(scenario, planner, program, segment)
    clock = _clock(scenario, planner, slowdown, trace, fabric, jobs, plans)
    is_vector = clock.fabric == "vector"
    mode = RunMode(
        follows_memory=listen is None,
        shows_memory=clock.fabric == "event" or slowdown.world_size <= FINE_RANKS,
        is_quick=listen is not None and is_vector and not scenario.strategy.in_one_process,
    )
    run = Run(scenario, slowdown, planner, times, segment, mode)
    script = traffic.watch(run.script(progress))
    clock.play(script if listen is None else listen(script))
    return RunOutput(run, clock, traffic)


def _clock(
    scenario: Scenario,
    planner: Planner,
    slowdown: Slowdown,
    trace: TraceBuilder,
    fabric: Fabric | None,
    others: Sequence[OtherJob] = (),
    plans: Mapping[int, list[Plan]] | None = None,
) -> Clock:
    """Choose the clock of a run from all plans that it may launch.

    The size of a run matters only with numerics. A trace does not matter: a point of a sweep, a run
    and `simulate` have the same times to the last bit.
    """
    by_size = fabric is not None and scenario.numerics
    num_steps = scenario.workload.num_steps(slowdown.world_size, scenario.base) if by_size else 0
    cost_of = scenario.collectives.cost_of
    streams = (plans or plans_of(scenario, planner)).items()
    simulated = {
        stream: [plan for plan in several if not cost_of(plan.collective).timed]
        for stream, several in streams
    }
    timed = scenario.collectives.cost.timed and not any(simulated.values())
    return clock_for(
        planner.network,
        simulated,
        slowdown,
        trace,
        fabric or "auto",
        partial(most_transfers, scenario, planner),
        others,
        scenario.cluster.overheads,
        timed,
        num_steps,
    )


def memory_needed(scenario: Scenario) -> MemoryLedger:
    """Memory of a scenario's ranks, without a clock and without numbers.

    The scenario has neither a sweep nor numerics.
    """
    if scenario.strategy.has_server:  # memory depends on the clock
        steps = {"steps": OBSERVED_STEPS, "epochs": None}
        short = {"workload": scenario.workload.model_copy(update=steps)}
        return play(scenario.model_copy(update=short), TraceBuilder(keep=False)).run.memory.ledger
    return _followed(
        Run(scenario, Slowdown(scenario.cluster, scenario.seed), Planner(scenario.cluster))
    )


def _reserved(scenario: Scenario) -> int | None:
    """Peak of what the fullest rank's caching allocator reserves; None without one."""
    if not scenario.cluster.allocator.caches or scenario.strategy.has_server:
        return None
    from simdp.engine.reserved import reserved_memory

    return int(reserved_memory(scenario.model_copy(update={"numerics": False})).reserved)


def _followed(run: Run) -> MemoryLedger:
    """Follow the memory of a run before its begin."""
    run.follow_memory(is_steady=_repeats(run))
    return run.memory.ledger


def _repeats(run: Run) -> bool:
    """Whether the second step repeats the first, except for the optimizer's state."""
    workload, n = run.scenario.workload, run.world_size
    if run.samples.lengths or workload.packing is not None or run.program.facts.is_inference:
        return False
    if workload.num_steps(n, run.scenario.base) < OBSERVED_STEPS:
        return False
    steps = workload.batches(n, run.scenario.seed, run.scenario.base, has_indices=False)
    first, second = islice(steps, OBSERVED_STEPS)
    if len(first.sizes) != len(second.sizes):  # the last step of an epoch has fewer micro-steps
        return False
    are_equal = all((a == b).all() for a, b in zip(first.sizes, second.sizes, strict=True))
    return are_equal and run.program.plan(0, first) is run.program.plan(1, second)


def prove_plans(scenario: Scenario) -> None:
    """Prove the plans of a scenario's collectives, for up to `MAX_PROVED` ranks.

    For collectives with several roots, as where every rank broadcasts its parameters, plans of
    `MAX_PROVED_ROOTS` roots are proved: the others are the same with other numbers.

    Raises
    ------
    PlanError
        If a contribution is lost, doubled or misplaced.
    """
    small = scenario.cluster.world_size <= MAX_PROVED
    planner, workload = Planner(scenario.cluster), scenario.workload
    nbytes = min(float(workload.model.num_parameters() * workload.itemsize), MAX_PROVED_NBYTES)
    roots: dict[str, list[int]] = {}
    for name, root in scenario.calls() if small else ():
        roots.setdefault(name, []).append(root)
    for name, several in roots.items():
        for root in _spread(several, MAX_PROVED_ROOTS):
            ledger.prove(planner.plan(getattr(scenario.collectives, name), nbytes, root))


def _spread(values: list[int], most: int) -> list[int]:
    """Choose at most a number of values, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[number * (len(values) - 1) // (most - 1)] for number in range(most)]


def _result(
    scenario: Scenario, played: RunOutput, builder: TraceBuilder, segment: Segment, keep_state: bool
) -> Result:
    run, clock, traffic, server = played
    numbers, records, cluster = run.numbers, run.numbers.records, scenario.cluster
    n, trace, ledger = cluster.world_size, builder.build(), run.memory.ledger
    charged, peaks = records[segment.first :], ledger.peak
    fullest = int(peaks.argmax())
    replicas = numbers.replicas
    ends = metrics.step_ends(trace, n, len(charged))
    if segment.participants is not None:  # absent ranks are idle
        there = segment.participants.there
        ends[~there] = ends[there].max(axis=0)
    are_identical = identical(replicas, segment.participants) if replicas else None
    times = metrics.times(trace, n, len(charged), [record.samples for record in charged], ends)
    steps = None
    if not scenario.strategy.has_server:  # else a step is one rank's update
        steps = range(metrics.num_warm_up(len(charged)), len(charged))
    modelled = rates(scenario, times.throughput_samples_per_s, times.step_time_s, segment, steps)
    run_metrics = replace(
        metrics.with_numbers(times, records),
        **modelled._asdict(),
        bucket_bytes=run.program.bucket_nbytes or None,
        memory_bytes=summed(ledger.at_peak[:, fullest]),
        peak_memory_bytes=[int(peak) for peak in peaks],
        reserved_memory_bytes=_reserved(scenario),
        fits_memory=fits(cluster, peaks.tolist()) and fits_host(scenario),
        replicas_identical=None if scenario.strategy.in_one_process else are_identical,
    )
    return Result(
        scenario=scenario.resolved(),
        set={},
        metrics=run_metrics,
        trace=trace,
        replicas=state_dicts(replicas) if replicas else None,
        outputs=numbers.outputs or None,
        network=network_of(run, clock, traffic, ends),
        server=server,
        participation=participation(run, charged),
        cost=cost_of(scenario, run_metrics),
        target=target_of(scenario, run_metrics, records, ends),
        gradient_noise=noise_scale([r.squares for r in records if r.squares is not None]),
        remarks=remarks(scenario)
        | not_reached(scenario, len(records), run_metrics)
        | too_fast(run_metrics)
        | unchecked_host_memory(scenario)
        | unlikely_steps(scenario)
        | taken_as_whole(scenario)
        | spared_tiers(clock, traffic, len(charged)),
        state=run.state(run_metrics.simulated_s) if keep_state else None,
        step_ends=ends,
        launched=partial(_launched, scenario),
    )


# Neighbours ---------------------------------------------------------------------------------------


def neighbours_of(scenario: Scenario) -> tuple[NetworkRoutes, list[OtherJob]]:
    """Routes of a scenario's ranks in the whole cluster, and its neighbours' jobs."""
    others = [scenario.neighbour(number) for number in range(len(scenario.neighbours))]
    jobs = [scenario, *others]
    whole = with_neighbours(scenario.cluster, [job.cluster.world_size for job in others])
    nodes = deal_nodes(scenario.placement, [job.cluster.num_nodes for job in jobs])
    own, *networks = [NetworkRoutes(whole, vertices(whole, mine)) for mine in nodes]
    return own, [_ready(job, net) for job, net in zip(others, networks, strict=True)]


def _ready(job: Scenario, network: NetworkRoutes) -> OtherJob:
    planner, slowdown = Planner(job.cluster, network), Slowdown(job.cluster, job.seed)
    traffic = Traffic()
    script = traffic.watch(_endless(job, planner, slowdown))
    return OtherJob(
        network, plans_of(job, planner), slowdown, script, traffic, job.cluster.overheads
    )


def _endless(job: Scenario, planner: Planner, slowdown: Slowdown) -> Iterator[ClockOp]:
    """A job's run, repeated without end; collectives are numbered on."""
    first, busy = 0, True
    while busy:  # a run without duration would repeat forever at one instant
        launched, busy = 0, False
        for op in Run(job, slowdown, planner).script():
            match op:
                case Launch():
                    launched, busy = launched + 1, busy or op.nbytes > 0
                    after = tuple(first + call for call in op.after)
                    yield op._replace(call=first + op.call, record=False, after=after)
                case ClockWait():
                    yield ClockWait(tuple((first + np.array(op.calls)).tolist()))
                case Feed():
                    busy = True
                    yield op
                case _:
                    busy = busy or (isinstance(op, ComputeWork) and bool(op.seconds.any()))
                    yield op
        first += launched
