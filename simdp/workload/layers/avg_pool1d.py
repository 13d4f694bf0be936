"""AvgPool1d: the mean of each window, as torch.nn.AvgPool1d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.avg_pool import AvgPool
from simdp.workload.layers.extents import Margin1, Size1


class AvgPool1d(AvgPool):
    """Mean over windows of series."""

    kind: Literal["avg_pool1d"] = "avg_pool1d"
    kernel_size: Size1
    stride: Size1 | None = None
    padding: Margin1 = (0,)
