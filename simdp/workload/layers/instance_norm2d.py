"""Instance norm of the channels of images: torch.nn.InstanceNorm2d."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.layers.instance_norm import InstanceNorm


class InstanceNorm2d(InstanceNorm):
    """Instance norm of images."""

    kind: Literal["instance_norm2d"] = "instance_norm2d"

    axes: ClassVar[int] = 2
