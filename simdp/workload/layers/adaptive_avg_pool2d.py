"""AdaptiveAvgPool2d: means over a grid of a given size, as torch.nn.AdaptiveAvgPool2d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.adaptive_avg_pool import AdaptiveAvgPool
from simdp.workload.layers.pairs import Size


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """Mean over the cells of a grid on images."""

    kind: Literal["adaptive_avg_pool2d"] = "adaptive_avg_pool2d"
    output_size: Size
