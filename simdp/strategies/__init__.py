"""HOW TO TRAIN: strategies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.strategies.apex import Apex
from simdp.strategies.base import Strategy
from simdp.strategies.data_parallel import DataParallel
from simdp.strategies.ddp import DDP
from simdp.strategies.fsdp import FSDP
from simdp.strategies.horovod import Horovod
from simdp.strategies.hsdp import HSDP
from simdp.strategies.local_sgd import LocalSGD
from simdp.strategies.parameter_server import ParameterServer
from simdp.strategies.single import Single
from simdp.strategies.zero1 import Zero1
from simdp.strategies.zero2 import Zero2

STRATEGIES: dict[str, type[Strategy]] = {
    "apex": Apex,
    "data_parallel": DataParallel,
    "ddp": DDP,
    "fsdp": FSDP,
    "horovod": Horovod,
    "hsdp": HSDP,
    "local_sgd": LocalSGD,
    "parameter_server": ParameterServer,
    "single": Single,
    "zero1": Zero1,
    "zero2": Zero2,
}
AnyStrategy = Annotated[Strategy, one_of("strategy", STRATEGIES, default="ddp")]

__all__ = ["STRATEGIES", "AnyStrategy", "Strategy"]
