"""Peak memory of each phase of a step, extrapolated to models of other depths.

A model is mostly a stack of equal blocks. A rank's memory at one operation is linear in the number
of blocks and in the samples of a micro-batch if the operation is counted from the nearer end of the
stack; between the ends it changes evenly, so that the ends suffice.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Ints
from simdp.engine.collective import Planner
from simdp.engine.interpreters.footprints import Amount, Footprint
from simdp.engine.interpreters.memory import MemoryInterpreter, MemoryLedger, TensorMemory
from simdp.engine.interpreters.records import Shapes
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.program import Program
from simdp.strategies.memory import sample_nbytes
from simdp.workload.lifetimes import Tensor

Phase = tuple[str, int, int]
"""Operation type, number of its call, and number of changes of memory before.

Calls are counted from the first one or, if negative, from the last.
"""

EDGE = 2
"""Blocks at each end of the stack with phases of their own; FSDP gathers units one or two ahead."""


class MemoryLine(float):
    """Bytes with one sample in a micro-batch, and the bytes of every further sample."""

    per_sample: float

    @classmethod
    def through(cls, at_one: float, at_two: float) -> MemoryLine:
        """Create the line through the bytes at one sample and at two."""
        line = cls(at_one)
        line.per_sample = at_two - at_one
        return line

    def __neg__(self) -> MemoryLine:
        return MemoryLine.through(-float(self), -float(self) - self.per_sample)

    def at(self, samples: float) -> float:
        """Bytes with a number of samples."""
        return float(self) + (samples - 1) * self.per_sample


class _Phases(MemoryLedger):
    """A ledger of lines that keeps the peak of each phase, at one sample and at two."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.where: tuple[str, int] | None = ("", 0)
        self.turn = 0
        self.of_phase: dict[Phase, tuple[float, float]] = {}
        self._one: Amount = 0.0
        self._per_sample = 0.0

    def hold(self, part: str, nbytes: Amount) -> None:
        if isinstance(nbytes, MemoryLine):
            self._per_sample += nbytes.per_sample
            nbytes = float(nbytes)
        elif isinstance(nbytes, np.ndarray) and (nbytes == nbytes[0]).all():
            nbytes = float(nbytes[0])
        self._one = self._one + nbytes
        if self.where is None:
            return
        phase, fullest = (*self.where, self.turn), self._one
        self.turn += 1
        at_one = float(fullest.max()) if isinstance(fullest, np.ndarray) else fullest
        at_two = at_one + self._per_sample
        most = self.of_phase.get(phase, (0.0, 0.0))
        if at_one > most[0] or at_two > most[1]:
            self.of_phase[phase] = max(at_one, most[0]), max(at_two, most[1])


class _Lines(TensorMemory):
    """Counts bytes as lines in the number of samples."""

    def __init__(self, footprint: Footprint) -> None:
        super().__init__(footprint)
        self._found: dict[tuple[Tensor, ...], list[tuple[str, Amount]]] = {}

    def by_part(self, tensors: tuple[Tensor, ...], sizes: Ints) -> list[tuple[str, Amount]]:
        if tensors not in self._found:  # equal blocks have equal tensors
            amounts = self._found[tensors] = []
            for part in dict.fromkeys(tensor.part for tensor in tensors):
                mine = [tensor for tensor in tensors if tensor.part == part]
                at_one, at_two = (self.room_of(mine, size) for size in (1, 2))
                amounts.append((part, MemoryLine.through(at_one, at_two)))
        return self._found[tensors]


class _AnySize(MemoryInterpreter):
    """Memory of every rank as lines in the number of samples."""

    def __init__(self, scenario: Scenario, program: Program, shapes: Shapes) -> None:
        super().__init__(scenario, program, shapes)
        self._tensors = _Lines(self.footprint)

    def _inputs(self, micro: int) -> Amount:
        nbytes = sample_nbytes(self._scenario.workload)
        at_one, at_two = (self._room(n * size for size in nbytes) for n in (1, 2))
        return MemoryLine.through(at_one, at_two)


def lines_by_phase(scenario: Scenario, everywhere: bool = False) -> dict[Phase, MemoryLine]:
    """Bytes of the fullest rank's peak in each phase, by the samples of a micro-batch.

    The scenario has neither a sweep nor numerics, and at least two steps: the second equals all
    later ones and is the peak. Its ranks are synchronous and have equal numbers of samples. Phases
    in the middle of the stack are included with ``everywhere``.
    """
    run = Run(scenario, Slowdown(scenario.cluster, scenario.seed), Planner(scenario.cluster))
    run.memory = _AnySize(scenario, run.program, Shapes(scenario, run.samples, has_loss=True))
    ledger = run.memory.ledger = _Phases(scenario.cluster.world_size)
    places = _places(scenario, everywhere)
    where: int | None = 0

    def watch(op: ops.Op) -> None:
        nonlocal where
        call = getattr(op, "call", None)
        if call is not None:
            where = places[call]
        name = type(op).__name__ + " again" * bool(getattr(op, "again", False))
        ledger.where = None if where is None else (name, where)
        ledger.turn = 0

    run.follow_memory(watch, is_steady=True)
    return {phase: MemoryLine.through(*peaks) for phase, peaks in ledger.of_phase.items()}


def _places(scenario: Scenario, everywhere: bool) -> list[int | None]:
    """Position of each call from the nearer end, None in the middle; the loss is one more call."""
    graph = scenario.workload.graph
    blocks, size = graph.blocks, len(graph.calls) + 1
    first, last = size, size
    if len(blocks) >= 2 * EDGE and not everywhere:
        first, last = blocks[EDGE - 1].calls[-1] + 1, blocks[-EDGE].calls[0]
    head = list(range(first))
    return [*head, *[None] * (last - first), *range(last - size, 0)]
