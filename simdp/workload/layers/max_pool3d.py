"""MaxPool3d: the largest pixel of each window, as torch.nn.MaxPool3d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.extents import Margin3, Size3
from simdp.workload.layers.max_pool import MaxPool


class MaxPool3d(MaxPool):
    """Maximum over windows of volumes."""

    kind: Literal["max_pool3d"] = "max_pool3d"
    kernel_size: Size3
    stride: Size3 | None = None
    padding: Margin3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)
