"""Learning-rate schedules by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.schedules.base import SCHEDULES, Schedule
from simdp.workload.schedules.constant_lr import ConstantLR
from simdp.workload.schedules.cosine_annealing_lr import CosineAnnealingLR
from simdp.workload.schedules.cosine_warmup import CosineWarmup
from simdp.workload.schedules.exponential_lr import ExponentialLR
from simdp.workload.schedules.linear_lr import LinearLR
from simdp.workload.schedules.linear_warmup import LinearWarmup
from simdp.workload.schedules.multi_step_lr import MultiStepLR
from simdp.workload.schedules.noam import Noam
from simdp.workload.schedules.none import NoSchedule
from simdp.workload.schedules.one_cycle_lr import OneCycleLR
from simdp.workload.schedules.polynomial_lr import PolynomialLR
from simdp.workload.schedules.sequential_lr import SequentialLR
from simdp.workload.schedules.step_lr import StepLR

SCHEDULES |= {
    "constant_lr": ConstantLR,
    "cosine_annealing_lr": CosineAnnealingLR,
    "cosine_warmup": CosineWarmup,
    "exponential_lr": ExponentialLR,
    "linear_lr": LinearLR,
    "linear_warmup": LinearWarmup,
    "multi_step_lr": MultiStepLR,
    "noam": Noam,
    "none": NoSchedule,
    "one_cycle_lr": OneCycleLR,
    "polynomial_lr": PolynomialLR,
    "sequential_lr": SequentialLR,
    "step_lr": StepLR,
}
AnySchedule = Annotated[Schedule, one_of("lr_schedule", SCHEDULES)]

__all__ = ["SCHEDULES", "AnySchedule", "NoSchedule", "Schedule"]
