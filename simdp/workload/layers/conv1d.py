"""Conv1d: convolution of series, as torch.nn.Conv1d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.convolution import Convolution
from simdp.workload.layers.extents import Padding1, Size1


class Conv1d(Convolution):
    """Cross-correlation along the length."""

    kind: Literal["conv1d"] = "conv1d"
    kernel_size: Size1
    stride: Size1 = (1,)
    padding: Padding1 = (0,)
    dilation: Size1 = (1,)
