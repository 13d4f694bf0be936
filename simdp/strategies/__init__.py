"""HOW TO TRAIN: strategies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.strategies.apex import Apex
from simdp.strategies.base import Strategy
from simdp.strategies.ddp import DDP
from simdp.strategies.horovod import Horovod
from simdp.strategies.single import Single

STRATEGIES: dict[str, type[Strategy]] = {
    "apex": Apex,
    "ddp": DDP,
    "horovod": Horovod,
    "single": Single,
}
AnyStrategy = Annotated[Strategy, one_of("strategy", STRATEGIES, default="ddp")]

__all__ = ["STRATEGIES", "AnyStrategy", "Strategy"]
