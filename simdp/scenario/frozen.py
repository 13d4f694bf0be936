"""Frozen: which strategies cannot carry parameters that nobody changes."""

from __future__ import annotations

from simdp.strategies import Strategy
from simdp.workload import Workload


def frozen_problems(workload: Workload, strategy: Strategy) -> list[str]:
    """Refuse strategies whose treatment of frozen parameters is not known here."""
    if not workload.graph.frozen:
        return []
    if strategy.player == "server":
        return [
            f"workload.frozen: strategy.kind: {strategy.kind} hands out every weight and takes a "
            "gradient of each; use ddp or another strategy without a server."
        ]
    if getattr(strategy, "mixed_precision", None) is not None:
        return [
            "workload.frozen: strategy.mixed_precision copies weights down and forgets the copies "
            "with their gradients, of which frozen ones have none; leave it out, or write "
            "workload.precision."
        ]
    return []
