"""Conv3d: convolution of volumes, as torch.nn.Conv3d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.convolution import Convolution
from simdp.workload.layers.extents import Padding3, Size3


class Conv3d(Convolution):
    """Cross-correlation along depth, height and width."""

    kind: Literal["conv3d"] = "conv3d"
    kernel_size: Size3
    stride: Size3 = (1, 1, 1)
    padding: Padding3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)
