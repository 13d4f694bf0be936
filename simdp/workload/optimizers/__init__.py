"""Optimizers by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.optimizers.adam import Adam
from simdp.workload.optimizers.adamw import AdamW
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.optimizers.none import NoOptimizer
from simdp.workload.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "none": NoOptimizer,
    "sgd": SGD,
}
AnyOptimizer = Annotated[Optimizer, one_of("optimizer", OPTIMIZERS, default="sgd")]

__all__ = ["OPTIMIZERS", "AnyOptimizer", "Optimizer"]
