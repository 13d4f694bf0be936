"""MaxPool2d: the largest pixel of each window, as torch.nn.MaxPool2d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.max_pool import MaxPool
from simdp.workload.layers.pairs import Margin, Size


class MaxPool2d(MaxPool):
    """Maximum over windows of images."""

    kind: Literal["max_pool2d"] = "max_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
    dilation: Size = (1, 1)
