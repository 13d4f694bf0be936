"""No data set: every step of a model without numbers is a full one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from simdp.arrays import Array
from simdp.workload.datasets.base import Dataset
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class NoData(Dataset):
    """For a model that has times but no numbers: samples are counted and never looked at."""

    kind: Literal["none"] = "none"

    usual_loss: ClassVar[str] = "none"

    def length(self, base: Path) -> int:
        return 0

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return {}
