"""Restart of all processes from the last checkpoint, on the same nodes."""

from __future__ import annotations

from typing import Literal

from simdp.job.recovery.base import Recovery


class Restart(Recovery):
    """All processes start again from the last checkpoint, when all nodes are there again.

    Where repairs take no time a node is replaced at once, by the scheduler's.
    """

    kind: Literal["restart"] = "restart"
