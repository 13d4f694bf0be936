"""Unused: what cannot be right about parameters that some ranks do not use."""

from __future__ import annotations

from simdp.errors import shown
from simdp.strategies import Strategy
from simdp.workload import Workload

SHOWN = 8
"""Parameters that a message lists."""


def unused_problems(workload: Workload, strategy: Strategy, world_size: int) -> list[str]:
    """Refuse ranks and parameters that do not exist, and strategies that would wait for ever."""
    if not workload.unused:
        return []
    known = [parameter.name for parameter in workload.graph.parameters]
    for rank, names in workload.unused.items():
        if not 0 <= rank < world_size:
            return [
                f"workload.unused: rank {rank} does not exist; with world_size {world_size}, ranks "
                f"are 0 ... {world_size - 1}."
            ]
        wrong = [name for name in names if name not in known]
        if wrong:
            listed = ", ".join(known[:SHOWN]) + (" ..." if len(known) > SHOWN else "")
            return [
                f"workload.unused.{rank}: no parameter is called {shown(wrong[0])}; known: "
                f"{listed}."
            ]
    if strategy.kind != "ddp":
        return [
            f"workload.unused: strategy.kind: {strategy.kind} needs a gradient of every parameter "
            "on every rank; use {kind: ddp, find_unused_parameters: true}."
        ]
    if getattr(strategy, "static_graph", False):
        return [
            "workload.unused: strategy.static_graph would ask only once which parameters no rank "
            "has used; write strategy.static_graph: false."
        ]
    if not getattr(strategy, "find_unused_parameters", False):
        rank, names = next(iter(workload.unused.items()))
        first = names[0] if names else known[0]
        return [
            f"strategy.find_unused_parameters: rank {rank} does not use {first}, so that its "
            "bucket would never be complete there; set find_unused_parameters: true."
        ]
    return []
