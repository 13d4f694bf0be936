"""So many times through the data set."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.job.target.base import Need, Target
from simdp.spec import Float, Int


class Epochs(Target):
    """So many epochs: ``{epochs: 90}``.

    Attributes
    ----------
    epochs : float
        How many.
    num_samples : int or None
        Of an epoch; None is as many as the data set has.
    """

    kind: Literal["epochs"] = "epochs"
    epochs: Float = Field(gt=0, le=1e9)
    num_samples: Int | None = Field(None, ge=1)

    def need(self, global_batch: float, num_samples: int) -> Need:
        wrong = self.problem_with(global_batch, num_samples)
        if wrong:
            raise ValueError(wrong)
        return Need(self.epochs * (self.num_samples or num_samples))

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        if num_samples or self.num_samples:
            return None
        return (
            "epochs: there is no data set, so nobody knows how long an epoch is; add "
            "num_samples: 1281167, or write {samples: 1e9}."
        )
