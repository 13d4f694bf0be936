"""Saving: how long checkpoints take, from what is written and over what."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simdp.engine.job.training import Saving
from simdp.job.checkpoint import Checkpoint, Copies
from simdp.scenario import Scenario
from simdp.strategies.memory import checkpoint_nbytes


class Written(NamedTuple):
    """Who writes how much of a checkpoint.

    Attributes
    ----------
    whole : float
        All of it [bytes].
    per_rank, per_node : float
        What a rank that writes does, and a node of such ranks [bytes].
    """

    whole: float
    per_rank: float
    per_node: float


def written(scenario: Scenario) -> Written:
    """Who writes what: ranks their shards, in one of all groups that have them; else one rank all.

    Parameters
    ----------
    scenario : Scenario
        One point.
    """
    checkpoint, partition = scenario.checkpoint, scenario.program.partition
    whole = checkpoint.size if checkpoint is not None else None
    if whole is None:
        whole = checkpoint_nbytes(scenario.workload)
    cluster, asked = scenario.cluster, checkpoint.writers if checkpoint is not None else None
    if asked is not None:
        return Written(whole, whole / asked, whole / asked * -(-asked // cluster.num_nodes))
    writers = partition.num_places if partition is not None else 1
    per_rank = whole / writers
    return Written(whole, per_rank, per_rank * min(writers, cluster.local_size))


def over_storage(checkpoint: Checkpoint, what: Written) -> float:
    """Time in which a checkpoint goes to storage, or comes from it [s]."""
    if checkpoint.write is not None:
        return checkpoint.write
    assert checkpoint.storage is not None
    per_node = what.per_node / checkpoint.per_node if checkpoint.per_node else 0.0
    return max(what.whole / checkpoint.storage, per_node)


def to_hosts(scenario: Scenario, what: Written) -> float:
    """Time in which all ranks that write copy to their hosts [s]."""
    host = scenario.cluster.host
    return max(host.copying(what.per_rank), what.per_node / host.memory_bandwidth)


def savings(scenario: Scenario, in_steps: Callable[[float], int], every: int) -> tuple[Saving, ...]:
    """All kinds of checkpoints of a job.

    Parameters
    ----------
    scenario : Scenario
        One point.
    in_steps : callable
        Rounds a time [s] to steps.
    every : int
        Steps between those on storage.
    """
    checkpoint = scenario.checkpoint
    if checkpoint is None:
        return ()
    what, load = written(scenario), scenario.recovery.load if scenario.recovery else None
    copied = what._replace(
        whole=what.whole * checkpoint.incremental,
        per_rank=what.per_rank * checkpoint.incremental,
        per_node=what.per_node * checkpoint.incremental,
    )
    write, copy = over_storage(checkpoint, copied), to_hosts(scenario, copied)
    if checkpoint.mode == "asynchronous":
        times = copy if checkpoint.host_copy is None else checkpoint.host_copy, write
    else:
        times = (max(write, copy) if checkpoint.write is None else write), 0.0
    load = over_storage(checkpoint, what) if load is None else load
    on_storage = Saving(every, *times, load)
    return (*(_copies(level, what, in_steps) for level in checkpoint.levels), on_storage)


def _copies(level: Copies, what: Written, in_steps: Callable[[float], int]) -> Saving:
    every = level.every if isinstance(level.every, int) else in_steps(level.every)
    time = level.write if level.bandwidth is None else what.per_node / level.bandwidth
    assert time is not None
    return Saving(every, time, 0.0, time, level.survives)
