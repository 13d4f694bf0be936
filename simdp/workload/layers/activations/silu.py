"""SiLU: x sigmoid(x), as torch.nn.SiLU; also called swish."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.sigmoid import logistic


class SiLU(Activation):
    """Sigmoid linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["silu"] = "silu"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        """Find the slope too: both need the same exponential."""
        share = logistic(x)
        slope = 1 - share
        slope *= x
        slope += 1
        slope *= share
        share *= x
        return share, slope

    def slope(self, saved: Array) -> Array:
        return saved
