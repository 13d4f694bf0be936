"""Targets by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.job.target.base import Need, Target
from simdp.spec import one_of

TARGETS: Family[Target] = Family(
    "targets",
    Target,
    __name__,
    {
        "benchmark": "benchmark:Benchmark",
        "epochs": "epochs:Epochs",
        "loss": "loss:LossReached",
        "samples": "samples:Samples",
    },
)
AnyTarget = Annotated[Target, one_of("target", TARGETS, by_key=True)]

__all__ = ["TARGETS", "AnyTarget", "Need", "Target"]
