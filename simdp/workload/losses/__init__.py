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
        "bce": "bce_with_logits:BCE",
        "bce_with_logits": "bce_with_logits:BCEWithLogits",
        "cross_entropy": "cross_entropy:CrossEntropy",
        "hinge_embedding": "margins:HingeEmbedding",
        "huber": "huber:Huber",
        "kl_div": "kl_div:KLDiv",
        "l1": "l1:L1",
        "mse": "mse:MSE",
        "multi_margin": "margins:MultiMargin",
        "nll": "nll:NLL",
        "none": "none:NoLoss",
        "poisson_nll": "nll:PoissonNLL",
        "smooth_l1": "smooth_l1:SmoothL1",
        "soft_margin": "margins:SoftMargin",
    },
)
AnyLoss = Annotated[Loss, one_of("loss", LOSSES, default="mse")]

__all__ = ["LOSSES", "AnyLoss", "Loss"]
