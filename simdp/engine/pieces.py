"""Pieces: which shapes every device computes on, step by step, without computing anything."""

from __future__ import annotations

from collections.abc import Iterator

from simdp.engine.rebalancing import rebalanced
from simdp.engine.samples import Samples
from simdp.results.batches import Piece
from simdp.scenario import Scenario


def pieces(scenario: Scenario, most: int | None = None) -> Iterator[list[Piece]]:
    """Pieces of every step of one point: of each micro-step and, in it, of each rank.

    Nothing of a model of which only times are known, whose samples have no shape.

    Parameters
    ----------
    scenario : Scenario
        The point.
    most : int, optional
        How many ranks are looked at; left out, all of them.
    """
    scenario = rebalanced(scenario)
    workload, n = scenario.workload, scenario.cluster.world_size
    if workload.model.timed:
        return
    timed = scenario.model_copy(update={"numerics": False})
    samples, output = Samples(timed), workload.graph.outputs[0][0]
    known: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    for step, batches in enumerate(workload.batches(n, scenario.seed, scenario.base), 1):
        found = []
        for micro_step, parts in enumerate(batches.micro):
            shapes, which = samples.shapes(parts)
            for rank, size in enumerate(parts.sizes[:most].tolist()):
                shape = shapes[which[rank]]
                if shape not in known:
                    known[shape] = workload.graph.shapes(shape)[output]
                inputs = tuple((size, *each) for each in shape) if size else ()
                found.append(Piece(step, micro_step, rank, inputs, (size, *known[shape])))
        yield found
