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
        "bce_with_logits": "BCEWithLogits",
        "cross_entropy": "CrossEntropy",
        "huber": "Huber",
        "kl_div": "KLDiv",
        "l1": "L1",
        "mse": "MSE",
        "nll": "NLL",
        "none": "NoLoss",
        "smooth_l1": "SmoothL1",
    },
)
AnyLoss = Annotated[Loss, one_of("loss", LOSSES, default="mse")]

__all__ = ["LOSSES", "AnyLoss", "Loss"]
