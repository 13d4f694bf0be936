"""Optimizers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.optimizers.groups import ParamGroup

OPTIMIZERS: Family[Optimizer] = Family(
    "optimizers",
    Optimizer,
    __name__,
    {
        "adadelta": "adadelta:Adadelta",
        "adafactor": "adafactor:Adafactor",
        "adagrad": "adagrad:Adagrad",
        "adam": "adam:Adam",
        "adamax": "adamax:Adamax",
        "adamw": "adamw:AdamW",
        "asgd": "asgd:ASGD",
        "lamb": "lamb:LAMB",
        "lars": "lars:LARS",
        "muon": "muon:Muon",
        "nadam": "nadam:NAdam",
        "none": "none:NoOptimizer",
        "radam": "radam:RAdam",
        "rmsprop": "rmsprop:RMSprop",
        "rprop": "rprop:Rprop",
        "sgd": "sgd:SGD",
    },
)
AnyOptimizer = Annotated[Optimizer, one_of("optimizer", OPTIMIZERS, default="sgd")]

__all__ = ["OPTIMIZERS", "AnyOptimizer", "Optimizer", "ParamGroup"]
