"""Recomputation: which calls run a second time in backward, since nothing of them was kept."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from simdp.workload import Workload
from simdp.workload.graph import Graph


class Rerun(NamedTuple):
    """Calls of a block, one behind the other, whose activations are not kept.

    Attributes
    ----------
    calls : range
        All of them.
    stored : frozenset of int
        Those of them whose outputs are kept all the same: they do not run again.
    """

    calls: range
    stored: frozenset[int] = frozenset()

    @property
    def again(self) -> tuple[int, ...]:
        """Calls that run again, in the order of forward."""
        return tuple(number for number in self.calls if number not in self.stored)


def recomputed(workload: Workload) -> list[Rerun]:
    """Runs of calls that are computed again in backward, first to last.

    ``blocks`` is torch's checkpoint of every block: only what enters it is kept. ``selective`` is
    checkpoint with torchtitan's list of operations: outputs of matrix products and convolutions are
    kept too, and those of fused attention, with what this keeps beside them; the rest is computed
    again, plain attention with it. Nothing runs again where backward does not come, which frozen
    parameters may spare. ``selective_every_other`` keeps the first product of each block,
    the third and so on, as torchtitan did at first.

    References
    ----------
    torch.utils.checkpoint.create_selective_checkpoint_contexts; torchtitan,
    torchtitan/distributed/activation_checkpoint.py.
    """
    if workload.recompute == "none":
        return []
    runs: list[Rerun] = []
    for block in workload.graph.blocks:
        stored = _stored(workload.graph, block.calls, workload.recompute)
        ends = [i for i, (a, b) in enumerate(pairwise(block.calls), 1) if b != a + 1]
        for first, last in pairwise([0, *ends, len(block.calls)]):
            calls = block.calls[first:last]
            run = Rerun(range(calls[0], calls[-1] + 1), stored.intersection(calls))
            needed = any(workload.graph.flows[number] for number in calls)
            runs += [run] if run.again and needed else []
    return sorted(runs, key=lambda run: run.calls.start)


def _stored(graph: Graph, calls: tuple[int, ...], recompute: str) -> frozenset[int]:
    if recompute == "blocks":
        return frozenset()
    costly = {number: graph.calls[number].layer.costly for number in calls}
    products = [number for number, what in costly.items() if what == "product"]
    if recompute == "selective_every_other":
        products = products[::2]
    return frozenset(products) | {n for n, what in costly.items() if what == "fused_attention"}
