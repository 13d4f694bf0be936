"""AvgPool3d: the mean of each window, as torch.nn.AvgPool3d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.avg_pool import AvgPool
from simdp.workload.layers.extents import Margin3, Size3


class AvgPool3d(AvgPool):
    """Mean over windows of volumes."""

    kind: Literal["avg_pool3d"] = "avg_pool3d"
    kernel_size: Size3
    stride: Size3 | None = None
    padding: Margin3 = (0, 0, 0)
