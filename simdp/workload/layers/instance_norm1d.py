"""Instance norm of the channels of series: torch.nn.InstanceNorm1d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.instance_norm import InstanceNorm


class InstanceNorm1d(InstanceNorm):
    """Instance norm of series."""

    kind: Literal["instance_norm1d"] = "instance_norm1d"

    axes: ClassVar[int] = 1
