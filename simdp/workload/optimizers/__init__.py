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
        "adadelta": "Adadelta",
        "adafactor": "Adafactor",
        "adagrad": "Adagrad",
        "adam": "Adam",
        "adamax": "Adamax",
        "adamw": "AdamW",
        "asgd": "ASGD",
        "lamb": "LAMB",
        "lars": "LARS",
        "muon": "Muon",
        "nadam": "NAdam",
        "none": "NoOptimizer",
        "radam": "RAdam",
        "rmsprop": "RMSprop",
        "rprop": "Rprop",
        "sgd": "SGD",
    },
)
AnyOptimizer = Annotated[Optimizer, one_of("optimizer", OPTIMIZERS, default="sgd")]

__all__ = ["OPTIMIZERS", "AnyOptimizer", "Optimizer", "ParamGroup"]
