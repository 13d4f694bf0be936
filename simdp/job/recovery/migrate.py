"""Live migration: the state of a failing node moves to another one."""

from __future__ import annotations

from typing import Literal

from simdp.job.recovery.base import Recovery
from simdp.percent import Percent
from simdp.spec import PositiveSeconds


class Migrate(Recovery):
    """What ran on a failing node goes on on another one; only the step at hand is repeated.

    There always is another node. Where a failure leaves nothing to move, and where the whole job
    fails, all processes start from the last checkpoint.

    Attributes
    ----------
    migration : float
        How long the job stands still [s].
    share : float
        Of the failures of nodes, those that leave the state to be moved.
    """

    kind: Literal["migrate"] = "migrate"
    migration: PositiveSeconds
    share: Percent = 1.0

    @property
    def num_spares(self) -> None:
        return None
