"""Table of strategies by kind, the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.errors import KindError
from simdp.family import Family
from simdp.spec import one_of
from simdp.strategies.base import Strategy

STRATEGIES: Family[Strategy] = Family(
    "strategies",
    Strategy,
    __name__,
    {
        "apex": "ddp:Apex",
        "data_parallel": "data_parallel:DataParallel",
        "ddp": "ddp:DDP",
        "diloco": "local_sgd:DiLoCo",
        "fsdp": "fsdp:FSDP",
        "fsdp1": "fsdp1:FSDP1",
        "horovod": "horovod:Horovod",
        "hsdp": "fsdp:HSDP",
        "local_sgd": "local_sgd:LocalSGD",
        "parameter_server": "parameter_server:ParameterServer",
        "single": "data_parallel:Single",
        "zero1": "zero:Zero1",
        "zero2": "zero:Zero2",
        "zero3": "zero:Zero3",
    },
)


def strategy_class(kind: str | None) -> type[Strategy]:
    """Return the class of a kind, or `Strategy` for None and for an unknown kind."""
    try:
        return (STRATEGIES.find(kind) if kind else None) or Strategy
    except KindError:
        return Strategy


AnyStrategy = Annotated[Strategy, one_of("strategy", STRATEGIES, default="ddp")]

__all__ = ["STRATEGIES", "AnyStrategy", "Strategy", "strategy_class"]
