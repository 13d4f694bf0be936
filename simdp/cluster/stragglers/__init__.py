"""Stragglers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.stragglers.base import Straggler
from simdp.cluster.stragglers.jitter import Jitter
from simdp.cluster.stragglers.lognormal import Lognormal
from simdp.cluster.stragglers.pause import Pause
from simdp.cluster.stragglers.slow_rank import SlowRank
from simdp.spec import one_of

STRAGGLERS: dict[str, type[Straggler]] = {
    "jitter": Jitter,
    "lognormal": Lognormal,
    "pause": Pause,
    "slow_rank": SlowRank,
}
AnyStraggler = Annotated[Straggler, one_of("straggler", STRAGGLERS)]

__all__ = ["STRAGGLERS", "AnyStraggler", "Straggler"]
