"""Losses by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.losses.base import Loss

LOSSES: Family[Loss] = Family(
    "losses",
    Loss,
    __name__,
    {
        "cross_entropy": "CrossEntropy",
        "mse": "MSE",
        "none": "NoLoss",
    },
)
AnyLoss = Annotated[Loss, one_of("loss", LOSSES, default="mse")]

__all__ = ["LOSSES", "AnyLoss", "Loss"]
