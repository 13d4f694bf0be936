"""Planning: from a scenario to the figures that the runs of its job need."""

from __future__ import annotations

from dataclasses import replace

from simdp.engine.job.interval import by_rule, in_steps
from simdp.engine.job.length import length_of
from simdp.engine.job.paces import paces
from simdp.engine.job.plan import Plan
from simdp.engine.job.saving import savings, written
from simdp.job.recovery import RECOVERY
from simdp.job.recovery.replica_groups import ReplicaGroups
from simdp.scenario import Scenario


def planned(scenario: Scenario) -> Plan:
    """Simulate a step, and work out all times of a job.

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
    plan = Plan(
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

    def with_every(steps: int) -> Plan:
        return replace(plan, savings=savings(scenario, lambda t: in_steps(t, plan), steps))

    if isinstance(every, str):
        return with_every(by_rule(every, with_every(1)))
    return with_every(every if isinstance(every, int) else in_steps(every, plan))


def _healing(scenario: Scenario) -> float:
    """How long a group copies the state from a peer [s]: all its nodes at once."""
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
