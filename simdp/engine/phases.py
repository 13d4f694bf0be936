"""Phases: the most that ranks keep in each part of a step, from which that of other depths follows.

A model is mostly a stack of equal blocks. What a rank keeps at one operation is a straight line in
the number of blocks and in the samples of a micro-batch, as long as the operation is counted from
the nearer end of the stack; from one end to the other it changes evenly, so that the ends tell.
"""

from __future__ import annotations

from simdp.arrays import Floats
from simdp.engine.choice import Planner
from simdp.engine.readers.ledger import Ledger
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario import Scenario
from simdp.steps import ops

Phase = tuple[str, int, int]
"""What an operation does, the call at which it stands, counted from the first one or, below zero,
from the last, and how many times it has taken or given back before."""

EDGE = 2
"""Blocks at each end of the stack that are looked at apart, since units of FSDP are gathered one
or two ahead."""


class _Phases(Ledger):
    """A ledger that also keeps the peak of each phase."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.where: tuple[str, int] | None = ("", 0)
        self.turn = 0
        self.of_phase: dict[Phase, float] = {}

    def hold(self, part: str, nbytes: float | Floats) -> None:
        super().hold(part, nbytes)
        if self.where is None:
            return
        phase, total = (*self.where, self.turn), float(self._total.max())
        self.turn += 1
        if total > self.of_phase.get(phase, 0.0):
            self.of_phase[phase] = total


def peaks_by_phase(scenario: Scenario) -> dict[Phase, float]:
    """Follow the memory of a scenario, and keep the fullest rank's peak of each phase.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep, without numerics, and of a strategy whose ranks play together.

    Returns
    -------
    dict of (str, int, int) to float
        Bytes by phase, those in the middle of the stack left out.
    """
    run = Run(scenario, Slowdown(scenario.cluster, scenario.seed), Planner(scenario.cluster))
    ledger = run.memory.ledger = _Phases(scenario.cluster.world_size)
    places = _places(scenario)
    where: int | None = 0

    def watch(op: ops.Op) -> None:
        nonlocal where
        call = getattr(op, "call", None)
        if call is not None:
            where = places[call]
        name = type(op).__name__ + " again" * bool(getattr(op, "again", False))
        ledger.where = None if where is None else (name, where)
        ledger.turn = 0

    run.follow_memory(watch)
    return ledger.of_phase


def _places(scenario: Scenario) -> list[int | None]:
    """Where each call stands, None in the middle; the loss counts as one more call."""
    graph = scenario.workload.graph
    blocks, size = graph.blocks, len(graph.calls) + 1
    first, last = size, size
    if len(blocks) >= 2 * EDGE:
        first, last = blocks[EDGE - 1].calls[-1] + 1, blocks[-EDGE].calls[0]
    head = list(range(first))
    return [*head, *[None] * (last - first), *range(last - size, 0)]
