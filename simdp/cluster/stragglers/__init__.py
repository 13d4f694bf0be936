"""Stragglers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.stragglers.base import Straggler
from simdp.family import Family
from simdp.spec import one_of

STRAGGLERS: Family[Straggler] = Family(
    "stragglers",
    Straggler,
    __name__,
    {
        "degraded_link": "degraded_link:DegradedLink",
        "empirical": "empirical:Empirical",
        "gamma": "gamma:Gamma",
        "jitter": "jitter:Jitter",
        "lognormal": "lognormal:Lognormal",
        "pause": "pause:Pause",
        "shared_host": "shared_host:SharedHost",
        "slow_node": "slow_node:SlowNode",
        "slow_rank": "slow_rank:SlowRank",
    },
)
AnyStraggler = Annotated[Straggler, one_of("straggler", STRAGGLERS)]

__all__ = ["STRAGGLERS", "AnyStraggler", "Straggler"]
