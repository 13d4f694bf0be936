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
        "chained_scheduler": "chained_scheduler:ChainedScheduler",
        "constant_lr": "constant_lr:ConstantLR",
        "constant_warmup": "constant_warmup:ConstantWarmup",
        "cosine_annealing_lr": "cosine_annealing_lr:CosineAnnealingLR",
        "cosine_annealing_warm_restarts": (
            "cosine_annealing_warm_restarts:CosineAnnealingWarmRestarts"
        ),
        "cosine_hard_restarts_warmup": "cosine_hard_restarts_warmup:CosineHardRestartsWarmup",
        "cosine_warmup": "cosine_warmup:CosineWarmup",
        "cyclic_lr": "cyclic_lr:CyclicLR",
        "exponential_lr": "exponential_lr:ExponentialLR",
        "inverse_sqrt": "inverse_sqrt:InverseSqrt",
        "lambda_lr": "lambda_lr:LambdaLR",
        "linear_lr": "linear_lr:LinearLR",
        "linear_warmup": "linear_warmup:LinearWarmup",
        "multi_step_lr": "multi_step_lr:MultiStepLR",
        "multiplicative_lr": "multiplicative_lr:MultiplicativeLR",
        "noam": "noam:Noam",
        "none": "none:NoSchedule",
        "one_cycle_lr": "one_cycle_lr:OneCycleLR",
        "polynomial_lr": "polynomial_lr:PolynomialLR",
        "polynomial_warmup": "polynomial_warmup:PolynomialWarmup",
        "reduce_lr_on_plateau": "reduce_lr_on_plateau:ReduceLROnPlateau",
        "sequential_lr": "sequential_lr:SequentialLR",
        "step_lr": "step_lr:StepLR",
        "warmup_stable_decay": "warmup_stable_decay:WarmupStableDecay",
    },
)
AnySchedule = Annotated[Schedule, one_of("lr_schedule", SCHEDULES)]

__all__ = ["SCHEDULES", "AnySchedule", "Schedule"]
