"""Goals: why a scenario's target, or the noise of its gradients, cannot be told."""

from __future__ import annotations

from pathlib import Path

from simdp.cluster import Cluster
from simdp.job.target import Target
from simdp.job.target.loss import LossReached
from simdp.steps.program import Program
from simdp.strategies import Strategy
from simdp.strategies.local_sgd import LocalSGD
from simdp.workload import Workload


def target_problems(
    target: Target | None, cluster: Cluster, workload: Workload, base: Path, numerics: bool
) -> list[str]:
    """Say why a target does not suit a scenario with which nothing else is wrong."""
    if target is None:
        return []
    if workload.mode != "training":
        return ["target: nothing is learned with workload.mode: inference; leave it out."]
    n = cluster.world_size
    if isinstance(target, LossReached):
        if not numerics:
            return [
                "target.loss: only replicas that learn can reach a loss, and numerics is false; "
                "set numerics: true, or write {samples: ...}."
            ]
        num_steps = workload.num_steps(n, base)
        if target.window > num_steps:
            return [
                f"target.window: a mean over {target.window} steps never comes about in a run of "
                f"{num_steps}; write less, or set workload.steps to more."
            ]
        return []
    wrong = target.problem_with(workload.samples_per_step(n), workload.num_samples(base))
    return [f"target.{wrong}"] if wrong else []


def noise_problems(
    cluster: Cluster, workload: Workload, strategy: Strategy, base: Path, numerics: bool
) -> list[str]:
    """Say why gradients have no noise that could be measured, where somebody asks for it."""
    if not workload.gradient_noise:
        return []
    n = cluster.world_size
    why = None
    if not numerics:
        why = "numerics is false, so that there are no gradients; set it to true"
    elif n < 2:
        why = "one rank's gradient has no other beside it; set cluster.world_size to 2 or more"
    elif strategy.one_process or strategy.player != "together" or isinstance(strategy, LocalSGD):
        why = f"ranks of {strategy.kind} have no gradients of the same weights; use ddp"
    elif workload.loss.adds:
        why = f"{workload.loss.kind} adds losses up; use one that averages"
    elif _keeps_pieces(strategy, workload, n, workload.num_samples(base)):
        why = f"{strategy.kind} keeps no whole gradient; use ddp, whose noise is the same"
    return [f"workload.gradient_noise: {why}, or leave this out."] if why else []


def _keeps_pieces(strategy: Strategy, workload: Workload, n: int, num_samples: int) -> bool:
    partition = Program.of(strategy, workload, n, num_samples).partition
    return partition is not None and not partition.kept.weights
