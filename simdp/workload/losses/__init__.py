"""Losses by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.losses.base import Loss
from simdp.workload.losses.cross_entropy import CrossEntropy
from simdp.workload.losses.mse import MSE

LOSSES: dict[str, type[Loss]] = {"cross_entropy": CrossEntropy, "mse": MSE}
AnyLoss = Annotated[Loss, one_of("loss", LOSSES, default="mse")]

__all__ = ["LOSSES", "AnyLoss", "Loss"]
