"""Optimizers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.optimizers.base import Optimizer, ParamGroup

OPTIMIZERS: Family[Optimizer] = Family(
    "optimizers",
    Optimizer,
    __name__,
    {
        "adadelta": "adam:Adadelta",
        "adafactor": "large_batch:Adafactor",
        "adagrad": "adam:Adagrad",
        "adam": "adam:Adam",
        "adamax": "adam:Adamax",
        "adamw": "adam:AdamW",
        "asgd": "sgd:ASGD",
        "lamb": "large_batch:LAMB",
        "lars": "large_batch:LARS",
        "muon": "large_batch:Muon",
        "nadam": "adam:NAdam",
        "none": "base:NoOptimizer",
        "radam": "adam:RAdam",
        "rmsprop": "adam:RMSprop",
        "rprop": "sgd:Rprop",
        "sgd": "sgd:SGD",
    },
)
AnyOptimizer = Annotated[Optimizer, one_of("optimizer", OPTIMIZERS, default="sgd")]

__all__ = ["OPTIMIZERS", "AnyOptimizer", "Optimizer", "ParamGroup"]
