"""AdaptiveAvgPool1d: means over a grid of a given size, as torch.nn.AdaptiveAvgPool1d."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.adaptive_avg_pool import AdaptiveAvgPool
from simdp.workload.layers.extents import Size1


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """Mean over the cells of a grid on series."""

    kind: Literal["adaptive_avg_pool1d"] = "adaptive_avg_pool1d"
    output_size: Size1
