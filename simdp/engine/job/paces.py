"""Paces: how long a step takes on as many nodes as there may be, each simulated once."""

from __future__ import annotations

from typing import Any, NamedTuple

from simdp.engine.job.account import Shares
from simdp.engine.job.training import Pace
from simdp.engine.simulate import simulate
from simdp.job.recovery.elastic import Elastic
from simdp.job.recovery.replica_groups import ReplicaGroups
from simdp.results.money import BUSY, WAITING
from simdp.scenario import Scenario
from simdp.workload.precision.rounding import numpy_dtype

FEW_STEPS, SOME_STEPS = 2, 9
"""Steps that are simulated: one to warm up and a steady one; more where steps differ by chance."""

MAX_SIZES = 12
"""Numbers of nodes that are simulated; with others it goes as with the next smaller one."""


class Paces(NamedTuple):
    """Steps of a job.

    Attributes
    ----------
    by_nodes : dict of int to Pace
        By the number of nodes.
    busy, waiting : float
        Shares of a step on all nodes in which devices compute, and wait in collectives.
    """

    by_nodes: dict[int, Pace]
    busy: float
    waiting: float


def paces(scenario: Scenario, counts_samples: bool) -> Paces:
    """Simulate a step on all nodes, and on as many as an elastic job may have.

    Parameters
    ----------
    scenario : Scenario
        One point.
    counts_samples : bool
        As in `simdp.engine.job.length.Length`.
    """
    cluster, recovery = scenario.cluster, scenario.recovery
    most = cluster.num_nodes
    sizes = able(scenario, recovery.min_nodes) if isinstance(recovery, Elastic) else [most]
    quorum = _between_groups(scenario) if isinstance(recovery, ReplicaGroups) else 0.0
    found, busy, waiting = {}, 1.0, 0.0
    for size in sizes:
        samples = scenario.workload.samples_per_step(size * cluster.local_size)
        all_samples = scenario.workload.samples_per_step(cluster.world_size)
        headway = samples / all_samples if counts_samples else 1.0
        metrics = _steady(of := _on(scenario, size))
        step: float = metrics["step_time_s"]
        parts, whole = _parts(of, step), step + quorum
        shares = Shares(*(part / whole for part in (step - sum(parts), *parts, quorum)))
        found[size] = Pace(whole, shares, headway)
        if size == most:
            busy, waiting = (sum(metrics[key] for key in keys) / whole for keys in (BUSY, WAITING))
    return Paces(found, busy, waiting)


MESSAGES = 4
"""Of a step with replica groups: to the lighthouse and back for a quorum, and for the vote."""


def _between_groups(scenario: Scenario) -> float:
    """What replica groups add to each step [s]: a quorum, a vote, and perhaps the exchange."""
    recovery, cluster = scenario.recovery, scenario.cluster
    assert isinstance(recovery, ReplicaGroups)
    found = recovery.quorum
    if found is None:
        inter = cluster.inter_node
        links = [] if inter is None else inter.link
        links = links if isinstance(links, list) else [links]
        found = MESSAGES * max((link.alpha for link in links), default=0.0)
    num_groups = cluster.num_nodes // recovery.group_nodes
    if recovery.exchange_bandwidth is None:
        return found
    workload, partition = scenario.workload, scenario.program.partition
    whole = (
        workload.model.num_parameters()
        * numpy_dtype(workload.precision.gradient_dtype(workload.dtype)).itemsize
    )
    per_node = whole / (partition.num_places if partition is not None else 1) * cluster.local_size
    return found + 2 * (num_groups - 1) / num_groups * per_node / recovery.exchange_bandwidth


def able(scenario: Scenario, least: int) -> list[int]:
    """Numbers of nodes, rising, on which the strategy can train; `MAX_SIZES` of them at most."""
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


def _on(scenario: Scenario, num_nodes: int) -> Scenario:
    """A few steps of times alone on so many nodes."""
    cluster, workload = scenario.cluster, scenario.workload
    strategy = scenario.strategy.after_warmup()
    drawn = cluster.stragglers or workload.input or strategy.player != "together"
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
    """What of a step goes to waiting for batches and for slow ranks [s]."""
    cluster, workload = scenario.cluster, scenario.workload
    data = straggler = 0.0
    if workload.input is not None:
        without: dict[str, Any] = {"workload": workload.model_copy(update={"input": None})}
        data = max(step - _time(scenario, without), 0.0)
    if cluster.stragglers:
        without = {"cluster": cluster.model_copy(update={"stragglers": []})}
        straggler = min(max(step - _time(scenario, without), 0.0), step - data)
    return data, straggler


def _time(scenario: Scenario, without: dict[str, Any]) -> float:
    found: float = _steady(scenario.model_copy(update=without))["step_time_s"]
    return found


def _steady(scenario: Scenario) -> dict[str, Any]:
    return simulate(scenario).metrics
