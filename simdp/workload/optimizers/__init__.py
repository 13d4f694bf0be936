"""Optimizers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.optimizers.adadelta import Adadelta
from simdp.workload.optimizers.adagrad import Adagrad
from simdp.workload.optimizers.adam import Adam
from simdp.workload.optimizers.adamax import Adamax
from simdp.workload.optimizers.adamw import AdamW
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.optimizers.groups import ParamGroup
from simdp.workload.optimizers.nadam import NAdam
from simdp.workload.optimizers.none import NoOptimizer
from simdp.workload.optimizers.radam import RAdam
from simdp.workload.optimizers.rmsprop import RMSprop
from simdp.workload.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adadelta": Adadelta,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamax": Adamax,
    "adamw": AdamW,
    "nadam": NAdam,
    "none": NoOptimizer,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "sgd": SGD,
}
AnyOptimizer = Annotated[Optimizer, one_of("optimizer", OPTIMIZERS, default="sgd")]

__all__ = ["OPTIMIZERS", "AnyOptimizer", "Optimizer", "ParamGroup"]
