"""AvgPool2d: the mean of each window, as torch.nn.AvgPool2d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.avg_pool import AvgPool
from simdp.workload.layers.pairs import Margin, Size


class AvgPool2d(AvgPool):
    """Mean over windows of images."""

    kind: Literal["avg_pool2d"] = "avg_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
