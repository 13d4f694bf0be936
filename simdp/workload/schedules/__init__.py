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
        "chained_scheduler": "lr_scheduler:ChainedScheduler",
        "constant_lr": "lr_scheduler:ConstantLR",
        "constant_warmup": "warmup:ConstantWarmup",
        "cosine_annealing_lr": "lr_scheduler:CosineAnnealingLR",
        "cosine_annealing_warm_restarts": ("lr_scheduler:CosineAnnealingWarmRestarts"),
        "cosine_hard_restarts_warmup": "warmup:CosineHardRestartsWarmup",
        "cosine_warmup": "warmup:CosineWarmup",
        "cyclic_lr": "lr_scheduler:CyclicLR",
        "exponential_lr": "lr_scheduler:ExponentialLR",
        "inverse_sqrt": "warmup:InverseSqrt",
        "lambda_lr": "lr_scheduler:LambdaLR",
        "linear_lr": "lr_scheduler:LinearLR",
        "linear_warmup": "warmup:LinearWarmup",
        "multi_step_lr": "lr_scheduler:MultiStepLR",
        "multiplicative_lr": "lr_scheduler:MultiplicativeLR",
        "noam": "warmup:Noam",
        "none": "base:NoSchedule",
        "one_cycle_lr": "lr_scheduler:OneCycleLR",
        "polynomial_lr": "lr_scheduler:PolynomialLR",
        "polynomial_warmup": "warmup:PolynomialWarmup",
        "reduce_lr_on_plateau": "base:ReduceLROnPlateau",
        "sequential_lr": "lr_scheduler:SequentialLR",
        "step_lr": "lr_scheduler:StepLR",
        "warmup_stable_decay": "warmup:WarmupStableDecay",
    },
)
AnySchedule = Annotated[Schedule, one_of("lr_schedule", SCHEDULES)]

__all__ = ["SCHEDULES", "AnySchedule", "Schedule"]
