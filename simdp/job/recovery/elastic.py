"""Elastic: the job goes on with the nodes that are left."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.job.recovery.base import Recovery
from simdp.spec import Int


class Elastic(Recovery):
    """All processes start from the last checkpoint with the nodes that are left, as by torchrun.

    A step then takes as long as on a cluster of so many nodes: of the same samples where
    ``workload.global_batch`` is given, of fewer where ``workload.microbatch`` is. A job of so many
    ``steps`` counts steps, one of ``epochs`` samples.

    Attributes
    ----------
    min_nodes : int
        With fewer the job waits.
    up : {"checkpoint", "at_once"}
        When nodes that come back are taken in, for which all processes start again: after the next
        checkpoint, so that nothing is lost, or at once, as by torchrun.
    """

    kind: Literal["elastic"] = "elastic"
    min_nodes: Int = Field(1, ge=1, le=2**20)
    up: Literal["checkpoint", "at_once"] = "checkpoint"
