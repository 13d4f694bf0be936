"""Collective algorithms as plans of rounds, by family and kind.

These tables are the one place of registration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from simdp.collectives.base import (
    Algorithm,
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    BarrierAlgorithm,
    BroadcastAlgorithm,
    GatherAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    ScatterAlgorithm,
)
from simdp.collectives.costs import AnyCost, Cost, LinksCost, Wiring
from simdp.collectives.direct import DirectAllToAll, NaiveGather, NaiveScatter
from simdp.collectives.doubling import RecursiveDoublingBarrier
from simdp.collectives.plans import Layout, Plan, Round, SubPlan
from simdp.collectives.ring import (
    RingAllGather,
    RingAllReduce,
    RingBroadcast,
    RingReduce,
    RingReduceScatter,
)
from simdp.errors import ScenarioError
from simdp.family import Family
from simdp.spec import Spec, one_of

ALL_GATHER: Family[AllGatherAlgorithm] = Family(
    "all_gather",
    AllGatherAlgorithm,
    __name__,
    {
        "auto": "auto:AutoAllGather",
        "bidirectional_ring": "ring:BidirectionalRingAllGather",
        "direct": "direct:DirectAllGather",
        "hierarchical": "hierarchical:HierarchicalAllGather",
        "msccl": "msccl:MscclAllGather",
        "multi_ring": "ring:MultiRingAllGather",
        "nvls": "in_network:NvlsAllGather",
        "recursive_doubling": "doubling:RecursiveDoublingAllGather",
        "ring": "ring:RingAllGather",
        "torus2d": "hierarchical:Torus2dAllGather",
    },
)
ALL_REDUCE: Family[AllReduceAlgorithm] = Family(
    "all_reduce",
    AllReduceAlgorithm,
    __name__,
    {
        "auto": "auto:AutoAllReduce",
        "bidirectional_ring": "ring:BidirectionalRingAllReduce",
        "direct": "direct:DirectAllReduce",
        "double_binary_tree": "tree:DoubleBinaryTreeAllReduce",
        "halving_doubling": "doubling:HalvingDoublingAllReduce",
        "hierarchical": "hierarchical:HierarchicalAllReduce",
        "msccl": "msccl:MscclAllReduce",
        "multi_ring": "ring:MultiRingAllReduce",
        "naive": "direct:NaiveAllReduce",
        "nvls": "in_network:NvlsAllReduce",
        "recursive_doubling": "doubling:RecursiveDoublingAllReduce",
        "ring": "ring:RingAllReduce",
        "sharp": "in_network:SharpAllReduce",
        "torus2d": "hierarchical:Torus2dAllReduce",
        "tree": "tree:TreeAllReduce",
    },
)
ALL_TO_ALL: Family[AllToAllAlgorithm] = Family(
    "all_to_all",
    AllToAllAlgorithm,
    __name__,
    {
        "auto": "auto:AutoAllToAll",
        "direct": "direct:DirectAllToAll",
        "hierarchical": "hierarchical:HierarchicalAllToAll",
        "msccl": "msccl:MscclAllToAll",
        "pairwise": "direct:PairwiseAllToAll",
    },
)
BARRIER: Family[BarrierAlgorithm] = Family(
    "barrier",
    BarrierAlgorithm,
    __name__,
    {
        "recursive_doubling": "doubling:RecursiveDoublingBarrier",
        "tree": "tree:TreeBarrier",
    },
)
BROADCAST: Family[BroadcastAlgorithm] = Family(
    "broadcast",
    BroadcastAlgorithm,
    __name__,
    {
        "auto": "auto:AutoBroadcast",
        "bidirectional_ring": "ring:BidirectionalRingBroadcast",
        "binomial": "tree:BinomialBroadcast",
        "double_binary_tree": "tree:DoubleBinaryTreeBroadcast",
        "halving_doubling": "doubling:HalvingDoublingBroadcast",
        "hierarchical": "hierarchical:HierarchicalBroadcast",
        "msccl": "msccl:MscclBroadcast",
        "naive": "direct:NaiveBroadcast",
        "nvls": "in_network:NvlsBroadcast",
        "ring": "ring:RingBroadcast",
        "sharp": "in_network:SharpBroadcast",
        "tree": "tree:TreeBroadcast",
    },
)
GATHER: Family[GatherAlgorithm] = Family(
    "gather",
    GatherAlgorithm,
    __name__,
    {
        "msccl": "msccl:MscclGather",
        "naive": "direct:NaiveGather",
    },
)
REDUCE: Family[ReduceAlgorithm] = Family(
    "reduce",
    ReduceAlgorithm,
    __name__,
    {
        "auto": "auto:AutoReduce",
        "binomial": "tree:BinomialReduce",
        "double_binary_tree": "tree:DoubleBinaryTreeReduce",
        "gloo": "direct:GlooReduce",
        "halving_doubling": "doubling:HalvingDoublingReduce",
        "hierarchical": "hierarchical:HierarchicalReduce",
        "msccl": "msccl:MscclReduce",
        "naive": "direct:NaiveReduce",
        "ring": "ring:RingReduce",
        "sharp": "in_network:SharpReduce",
        "tree": "tree:TreeReduce",
    },
)
REDUCE_SCATTER: Family[ReduceScatterAlgorithm] = Family(
    "reduce_scatter",
    ReduceScatterAlgorithm,
    __name__,
    {
        "auto": "auto:AutoReduceScatter",
        "bidirectional_ring": "ring:BidirectionalRingReduceScatter",
        "direct": "direct:DirectReduceScatter",
        "gloo": "direct:GlooReduceScatter",
        "halving_doubling": "doubling:HalvingDoublingReduceScatter",
        "hierarchical": "hierarchical:HierarchicalReduceScatter",
        "msccl": "msccl:MscclReduceScatter",
        "multi_ring": "ring:MultiRingReduceScatter",
        "nvls": "in_network:NvlsReduceScatter",
        "ring": "ring:RingReduceScatter",
        "torus2d": "hierarchical:Torus2dReduceScatter",
    },
)
SCATTER: Family[ScatterAlgorithm] = Family(
    "scatter",
    ScatterAlgorithm,
    __name__,
    {
        "msccl": "msccl:MscclScatter",
        "naive": "direct:NaiveScatter",
    },
)

FAMILIES: dict[str, Family[Algorithm]] = {
    "all_gather": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "all_to_all": ALL_TO_ALL,
    "barrier": BARRIER,
    "broadcast": BROADCAST,
    "gather": GATHER,
    "reduce": REDUCE,
    "reduce_scatter": REDUCE_SCATTER,
    "scatter": SCATTER,
}

ALSO_CALLED: dict[str, dict[str, dict[str, str]]] = {
    "all_gather": {"halving_doubling": {"kind": "recursive_doubling"}},
    "all_reduce": {"binary_tree": {"kind": "tree"}},
    "broadcast": {"binary_tree": {"kind": "tree"}},
    "reduce": {"binary_tree": {"kind": "tree"}},
}
"""Other names of members, by family; halving and doubling gathers by recursive doubling."""


def member_of(family: str, default: str | None = None) -> one_of:
    """Return a field type for an algorithm of a family; see `simdp.spec.one_of`."""
    return one_of(family, FAMILIES[family], default, ALSO_CALLED.get(family))


# A member that holds members, such as `hierarchical`, takes the types of its fields from here.
AnyAllGather = Annotated[AllGatherAlgorithm, member_of("all_gather", "ring")]
AnyAllReduce = Annotated[AllReduceAlgorithm, member_of("all_reduce", "ring")]
AnyAllToAll = Annotated[AllToAllAlgorithm, member_of("all_to_all", "direct")]
AnyBarrier = Annotated[BarrierAlgorithm, member_of("barrier", "recursive_doubling")]
AnyBroadcast = Annotated[BroadcastAlgorithm, member_of("broadcast", "ring")]
AnyGather = Annotated[GatherAlgorithm, member_of("gather", "naive")]
AnyReduce = Annotated[ReduceAlgorithm, member_of("reduce", "ring")]
AnyReduceScatter = Annotated[ReduceScatterAlgorithm, member_of("reduce_scatter", "ring")]
AnyScatter = Annotated[ScatterAlgorithm, member_of("scatter", "naive")]


Collective = Literal[
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


class Collectives(Spec):
    """Algorithms and cost of the collectives.

    A collective with an algorithm given here is simulated over the links, transfer by transfer. On
    NVIDIA's and AMD's devices of the catalogue all others are timed by NCCL's cost model; on other
    devices they are simulated over the links, too. An explicit `cost` applies to all of them.
    """

    all_gather: AnyAllGather = RingAllGather()
    """Algorithms; the default is a ring."""
    all_reduce: AnyAllReduce = RingAllReduce()
    """Algorithms; the default is a ring."""
    all_to_all: AnyAllToAll = DirectAllToAll()
    """Algorithms; by default every transfer goes directly from its source to its target."""
    barrier: AnyBarrier = RecursiveDoublingBarrier()
    """Algorithm; the default is recursive doubling."""
    broadcast: AnyBroadcast = RingBroadcast()
    """Algorithms; the default is a ring."""
    gather: AnyGather = NaiveGather()
    """Algorithms; by default every transfer goes directly from its source to its target."""
    reduce: AnyReduce = RingReduce()
    """Algorithms; the default is a ring."""
    reduce_scatter: AnyReduceScatter = RingReduceScatter()
    """Algorithms; the default is a ring."""
    scatter: AnyScatter = NaiveScatter()
    """Algorithms; by default every transfer goes directly from its source to its target."""
    cost: AnyCost = LinksCost()
    """Source of the times of collectives: ``links`` simulates their transfers, ``nccl`` is NCCL's
    own model, ``table`` a measured table. The default is described above."""
    over_links: tuple[Collective, ...] | None = None
    """Collectives that are simulated over the links although ``cost`` gives the time of all others;
    default: those with an explicit algorithm, if there is no ``cost``. An empty list keeps a
    machine's cost over another network than its own."""

    def cost_of(self, collective: str) -> Cost:
        """Return the cost of a collective."""
        return LinksCost() if collective in (self.over_links or ()) else self.cost

    @property
    def all_timed(self) -> bool:
        """Whether no collective's transfers are simulated."""
        return self.cost.timed and not self.over_links

    def settled(self, base: Path) -> Self:
        """Return the same section with its files read; relative paths start from ``base``.

        Raises
        ------
        ScenarioError
            With a line for every unreadable or invalid file.
        """
        settled, lines = {}, []
        for name in (*FAMILIES, "cost"):
            try:
                settled[name] = getattr(self, name).settled(base)
            except ScenarioError as error:
                lines += [f"collectives.{name}: {line}" for line in error.problems]
        if lines:
            raise ScenarioError(lines)
        return self.model_copy(update=settled)


def named(collectives: Mapping[str, object], swept: Collection[str] = ()) -> list[str]:
    """Return the collectives with an explicit algorithm, written in the section or swept.

    ``swept`` are the dotted keys of the scenario's sweep.
    """
    keys = [key.split(".") for key in swept]
    of_sweep = {key[1] for key in keys if key[0] == "collectives" and len(key) > 1}
    return [name for name in FAMILIES if name in collectives or name in of_sweep]


def has_cost(collectives: Mapping[str, object], swept: Collection[str] = ()) -> bool:
    """Return whether a cost for all collectives is written or swept; arguments as for `named`."""
    keys = [key.split(".") for key in swept]
    return "cost" in collectives or any(
        key[0] == "collectives" and key[1:2] in ([], ["cost"]) for key in keys
    )


__all__ = [
    "ALL_REDUCE",
    "BROADCAST",
    "FAMILIES",
    "Algorithm",
    "Collectives",
    "Cost",
    "Layout",
    "Plan",
    "Round",
    "SubPlan",
    "Wiring",
    "has_cost",
    "named",
]
