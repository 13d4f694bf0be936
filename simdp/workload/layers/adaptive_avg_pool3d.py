"""AdaptiveAvgPool3d: means over a grid of a given size, as torch.nn.AdaptiveAvgPool3d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.adaptive_avg_pool import AdaptiveAvgPool
from simdp.workload.layers.extents import Size3


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """Mean over the cells of a grid on volumes."""

    kind: Literal["adaptive_avg_pool3d"] = "adaptive_avg_pool3d"
    output_size: Size3
