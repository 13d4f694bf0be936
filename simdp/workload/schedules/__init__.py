"""Learning-rate schedules by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.schedules.base import Schedule

SCHEDULES: Family[Schedule] = Family(
    "schedules",
    Schedule,
    __name__,
    {
        "constant_lr": "ConstantLR",
        "cosine_annealing_lr": "CosineAnnealingLR",
        "cosine_warmup": "CosineWarmup",
        "exponential_lr": "ExponentialLR",
        "linear_lr": "LinearLR",
        "linear_warmup": "LinearWarmup",
        "multi_step_lr": "MultiStepLR",
        "noam": "Noam",
        "none": "NoSchedule",
        "one_cycle_lr": "OneCycleLR",
        "polynomial_lr": "PolynomialLR",
        "sequential_lr": "SequentialLR",
        "step_lr": "StepLR",
    },
)
AnySchedule = Annotated[Schedule, one_of("lr_schedule", SCHEDULES)]

__all__ = ["SCHEDULES", "AnySchedule", "Schedule"]
