"""So many samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.job.target.base import Need, Target
from simdp.spec import Float


class Samples(Target):
    """So many samples of all ranks together: ``{samples: 1e9}``.

    Attributes
    ----------
    samples : float
        How many.
    """

    kind: Literal["samples"] = "samples"
    samples: Float = Field(ge=1, le=1e18)

    def need(self, global_batch: float, num_samples: int) -> Need:
        return Need(self.samples)
