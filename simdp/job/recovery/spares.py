"""Hot spares: nodes that stand by for those that are lost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.job.recovery.base import Recovery
from simdp.spec import Int, Seconds


class Spares(Recovery):
    """A spare takes a lost node's place, and all processes start from the last checkpoint.

    Where no spare is left, the job waits for the first repair. A repaired node is a spare.

    Attributes
    ----------
    num : int
        Nodes that stand by, beside those of the cluster; they fail, and cost, as others do.
    swap : float
        Until a spare has taken a lost node's place [s].
    """

    kind: Literal["spares"] = "spares"
    num: Int = Field(ge=1, le=2**20)
    swap: Seconds = 0.0

    @property
    def num_spares(self) -> int:
        return self.num
