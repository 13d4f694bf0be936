"""Runs only the numbers of a scenario and shows every step: gradients, weights, buffers, losses.

Synchronous ranks need no clock; with a parameter server the order of messages counts, so that
the whole run is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.engine.collective import Planner
from simdp.engine.interpreters.numbers import Numbers
from simdp.engine.network.traffic import Traffic
from simdp.engine.replicas import Replicas, identical, whole_weights
from simdp.engine.run import Run, RunMode
from simdp.engine.simulate import rebalanced
from simdp.engine.slowdown import Slowdown
from simdp.engine.trainer import Trainer
from simdp.results.trace import TraceBuilder
from simdp.scenario.root import Scenario
from simdp.workload.precision import rounded
from simdp.workload.sampling import Participants, StepBatches

Arrays = dict[str, Array]
Nudge = Callable[[str, Array], Array]
"""Returns a parameter's first weights, slightly changed."""


class StepNumbers(NamedTuple):
    """Numbers of one optimizer step."""

    number: int
    """From 1."""
    loss: float | None
    """Mean over all items of the ranks' losses."""
    gradients: Arrays
    """Rank 0's after the reduction, before clipping, without the loss scale."""
    weights: Arrays
    """Rank 0's after the step, or the server's weights; not copied. With ``samples_per_rank`` those
    of the rank that has the most samples."""
    buffers: Arrays
    """Rank 0's after the step, or the server's weights; not copied. With ``samples_per_rank`` those
    of the rank that has the most samples."""
    replicas_identical: bool
    """Whether all ranks that still have samples have the same weights, bit for bit; True with a
    server."""
    skipped: bool | None
    """Whether inf or nan prevented the update."""


Look = Callable[[StepNumbers], None]


def batches_of(scenario: Scenario) -> Iterator[StepBatches]:
    """Batches of the ranks, step by step, as a run of the scenario has them."""
    scenario = rebalanced(scenario)
    return scenario.workload.batches(scenario.cluster.world_size, scenario.seed, scenario.base)


def follow(scenario: Scenario, num_steps: int, look: Look) -> None:
    """Run a scenario's numbers and show every step.

    Parameters
    ----------
    scenario : Scenario
        With numerics, without a sweep.
    num_steps : int
        Number of steps to run.
    look : callable
        Called with each step.
    """
    with np.errstate(all="ignore"):  # a run that diverges has no finite loss
        if scenario.strategy.has_server:
            _follow_server(scenario, num_steps, look)
        else:
            for numbers in steps_of(scenario, islice(batches_of(scenario), num_steps)):
                look(numbers)


def steps_of(
    scenario: Scenario,
    batches: Iterable[StepBatches],
    nudge: Nudge | None = None,
    scaled_by: int | None = None,
) -> Iterator[StepNumbers]:
    """Run the numbers of synchronous ranks on given batches.

    Parameters
    ----------
    scenario : Scenario
        With numerics, without a sweep and without a parameter server.
    batches : iterable of StepBatches
        Of each step.
    nudge : callable, optional
        Changes the first weights of every rank.
    scaled_by : int, optional
        Number of ranks by which ``lr_scaling`` scales the learning rate; default: the scenario's.
    """
    scenario = rebalanced(scenario)
    cluster = scenario.cluster
    planner = Planner(cluster, seed=scenario.seed)
    mode = RunMode(follows_memory=False)
    run = Run(scenario, Slowdown(cluster, scenario.seed), planner, mode=mode)
    numbers = run.numbers
    assert isinstance(numbers, Numbers), "a scenario with numerics has numbers"
    replicas = numbers.replicas
    trainer, seen = replicas.trainer, list[Arrays]()
    given = scenario.workload.samples_per_rank
    shown = 0 if given is None else given.index(max(given))
    trainer.look = lambda gradients: seen.append(trainer.whole_gradients(gradients, shown))
    trainer.world_size = scaled_by or cluster.world_size
    if nudge is not None:
        _nudge(replicas, nudge)
    for _ in run.setup():
        pass
    is_one = cluster.world_size == 1 or scenario.strategy.in_one_process
    for step, of_step in enumerate(batches):
        for _ in run.step(step, of_step):
            pass
        record = numbers.records[-1]
        yield StepNumbers(
            number=step + 1,
            loss=record.loss,
            gradients=seen.pop() if seen else {},
            weights=whole_weights(replicas)[shown],
            buffers=replicas.buffers[shown],
            replicas_identical=is_one or identical(replicas, _training(scenario, of_step)),
            skipped=record.skipped,
        )


def _training(scenario: Scenario, batches: StepBatches) -> Participants | None:
    """Ranks that still train in a step; None for all."""
    if scenario.workload.samples_per_rank is None:
        return None
    gone = np.flatnonzero(batches.sizes.sum(axis=0) == 0).tolist()
    return Participants.without(scenario.cluster.world_size, "absent", gone)


def _nudge(replicas: Replicas, nudge: Nudge) -> None:
    trainer: Trainer = replicas.trainer
    for rank in range(replicas.world_size):
        for name, weight in trainer.pieces(rank).items():
            weight[...] = nudge(name, weight)
            used = replicas.weights[rank][name]
            if used is not weight:  # rounded copies of master weights
                used[...] = rounded(weight, trainer.stored)


def _follow_server(scenario: Scenario, num_steps: int, look: Look) -> None:
    """Simulate a run with a parameter server until a step, and show each."""
    from simdp.engine.server.run import ServerRun  # few runs need it
    from simdp.engine.server.updates import Learning

    cluster = scenario.cluster
    timed = scenario.model_copy(update={"numerics": False})
    run = Run(timed, Slowdown(cluster, scenario.seed), Planner(cluster))
    run.numbers = learning = Learning(scenario, run.program)
    seen = list[Arrays]()
    trainer = learning.trainer
    trainer.look = lambda gradients: seen.append(trainer.whole_gradients(gradients))

    def show(step: int) -> None:
        record = learning.records[-1]
        look(
            StepNumbers(
                number=step,
                loss=record.loss,
                gradients=seen[-1] if len(seen) == 1 else {},
                weights=trainer.weights[0],
                buffers=learning.replicas.buffers[0],
                replicas_identical=True,
                skipped=record.skipped,
            )
        )
        seen.clear()

    ServerRun(run, learning, TraceBuilder(keep=False), Traffic(), show, num_steps).play()
