"""MaxPool1d: the largest pixel of each window, as torch.nn.MaxPool1d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.extents import Margin1, Size1
from simdp.workload.layers.max_pool import MaxPool


class MaxPool1d(MaxPool):
    """Maximum over windows of series."""

    kind: Literal["max_pool1d"] = "max_pool1d"
    kernel_size: Size1
    stride: Size1 | None = None
    padding: Margin1 = (0,)
    dilation: Size1 = (1,)
