"""Conv2d: convolution of images, as torch.nn.Conv2d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.convolution import Convolution
from simdp.workload.layers.pairs import Padding, Size


class Conv2d(Convolution):
    """Cross-correlation along height and width."""

    kind: Literal["conv2d"] = "conv2d"
    kernel_size: Size
    stride: Size = (1, 1)
    padding: Padding = (0, 0)
    dilation: Size = (1, 1)
