"""Instance norm of the channels of volumes: torch.nn.InstanceNorm3d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.instance_norm import InstanceNorm


class InstanceNorm3d(InstanceNorm):
    """Instance norm of volumes."""

    kind: Literal["instance_norm3d"] = "instance_norm3d"

    axes: ClassVar[int] = 3
