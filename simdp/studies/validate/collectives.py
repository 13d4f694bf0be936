"""Collectives: simulated times of a measured table, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simdp.collectives import Algorithm
from simdp.engine.collective import Bench
from simdp.errors import ScenarioError
from simdp.results.validation import CollectiveComparison
from simdp.scenario import Scenario
from simdp.scenario.measured import MeasuredCollective
from simdp.scenario.wiring import wiring_of
from simdp.studies.validate.files import cluster_name
from simdp.studies.validate.intervals import Known, pairs_of
from simdp.studies.validate.naive import ring_collective_time
from simdp.studies.validate.novelty import news, told
from simdp.studies.validate.unmeasured import with_pool

Clock = Callable[[int], float]


def clock_of(scenario: Scenario, collective: str) -> Clock:
    """Return what tells a collective's time by its size [bytes; s], on the cluster of a scenario.

    Raises
    ------
    ScenarioError
        If ``collectives.cost`` knows nothing of it.
    """
    cost = scenario.collectives.cost
    if cost.timed:
        wiring = wiring_of(scenario.cluster)
        wrong = cost.problem_with(collective, wiring)
        if wrong is not None:
            raise ScenarioError([f"collectives.cost: {wrong}"])
        return lambda nbytes: cost.seconds(collective, nbytes, wiring)
    algorithm = getattr(scenario.collectives, collective, None)
    if not isinstance(algorithm, Algorithm):
        raise ScenarioError(
            [f"collectives.cost: {cost.kind} has no algorithm for {collective}; use nccl or table."]
        )
    bench = Bench(scenario.cluster)
    return lambda nbytes: bench.time(algorithm, nbytes).seconds


def time_table(
    name: str,
    measured: MeasuredCollective,
    scenario: Scenario,
    known: Sequence[Known],
    number: int,
    pairs: Sequence[tuple[Scenario, Scenario]] | None = None,
) -> list[CollectiveComparison]:
    """Simulate every size of a table, and hold it against what was measured.

    Parameters
    ----------
    name : str
        Of the scenario that the table belongs to.
    measured : MeasuredCollective
        What a real machine did.
    scenario : Scenario
        With what the table sets.
    known : sequence of Known
        How well its constants are.
    number : int
        Of the table, from 0.
    pairs : sequence of (Scenario, Scenario), optional
        The scenario with something at either end of its interval; without it, those constants of
        which ``known`` tells.

    Raises
    ------
    ScenarioError
        If it cannot be simulated.
    """
    collective, wiring = measured.collective, wiring_of(scenario.cluster)
    clock, known = clock_of(scenario, collective), with_pool(known, scenario)
    pairs = pairs_of(scenario, known) if pairs is None else pairs
    ends = [(clock_of(low, collective), clock_of(high, collective)) for low, high in pairs]
    new = news(known, collective, wiring.num_nodes)
    whose = cluster_name(name, scenario), measured.set, wiring.world_size
    rows = []
    for (nbytes, seconds), role in zip(measured.times, measured.roles(), strict=True):
        time = clock(nbytes)
        both = [(a(nbytes), b(nbytes)) for a, b in ends]
        rows.append(
            CollectiveComparison(
                name,
                *whose,
                role,
                seconds,
                time,
                *told(time, both, known, new, nbytes),
                note=measured.note,
                collective=collective,
                table=number,
                nbytes=nbytes,
                new=new,
                ring=ring_collective_time(collective, nbytes, wiring),
                joined=wiring.joined,
            )
        )
    return rows
