"""WHO SENDS WHAT: collective algorithms as plans of rounds, by family and kind.

These tables are the one place of registration.
"""

from __future__ import annotations

from typing import Annotated, Literal

from simdp.collectives.base import (
    Algorithm,
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    Gather,
    Plan,
    Reduce,
    ReduceScatter,
    Round,
    Scatter,
)
from simdp.collectives.naive import (
    NaiveAllReduce,
    NaiveBroadcast,
    NaiveGather,
    NaiveReduce,
    NaiveScatter,
)
from simdp.collectives.ring import (
    RingAllGather,
    RingAllReduce,
    RingBroadcast,
    RingReduceScatter,
)
from simdp.collectives.tree import TreeAllReduce, TreeBarrier, TreeBroadcast, TreeReduce
from simdp.spec import Spec, one_of

ALL_REDUCE: dict[str, type[AllReduce]] = {
    "naive": NaiveAllReduce,
    "ring": RingAllReduce,
    "tree": TreeAllReduce,
}
REDUCE_SCATTER: dict[str, type[ReduceScatter]] = {"ring": RingReduceScatter}
ALL_GATHER: dict[str, type[AllGather]] = {"ring": RingAllGather}
BROADCAST: dict[str, type[Broadcast]] = {
    "naive": NaiveBroadcast,
    "ring": RingBroadcast,
    "tree": TreeBroadcast,
}
REDUCE: dict[str, type[Reduce]] = {"naive": NaiveReduce, "tree": TreeReduce}
SCATTER: dict[str, type[Scatter]] = {"naive": NaiveScatter}
GATHER: dict[str, type[Gather]] = {"naive": NaiveGather}
BARRIER: dict[str, type[Barrier]] = {"tree": TreeBarrier}

FAMILIES: dict[str, dict[str, type[Algorithm]]] = {
    "all_gather": {**ALL_GATHER},
    "all_reduce": {**ALL_REDUCE},
    "barrier": {**BARRIER},
    "broadcast": {**BROADCAST},
    "gather": {**GATHER},
    "reduce": {**REDUCE},
    "reduce_scatter": {**REDUCE_SCATTER},
    "scatter": {**SCATTER},
}

AnyAllGather = Annotated[AllGather, one_of("all_gather", ALL_GATHER, default="ring")]
AnyAllReduce = Annotated[AllReduce, one_of("all_reduce", ALL_REDUCE, default="ring")]
AnyBroadcast = Annotated[Broadcast, one_of("broadcast", BROADCAST, default="ring")]


class Collectives(Spec):
    """Which algorithm serves each collective that a strategy calls.

    Attributes
    ----------
    all_gather, all_reduce, broadcast
        Algorithms; NCCL's rings, unless told otherwise.
    cost : str
        How their time is found; ``links``, the fabrics, is the only way so far.
    """

    all_gather: AnyAllGather = RingAllGather()
    all_reduce: AnyAllReduce = RingAllReduce()
    broadcast: AnyBroadcast = RingBroadcast()
    cost: Literal["links"] = "links"


__all__ = [
    "ALL_REDUCE",
    "BROADCAST",
    "FAMILIES",
    "Algorithm",
    "Collectives",
    "Plan",
    "Round",
]
