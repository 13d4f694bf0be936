"""AvgPool: the mean of each window; base of torch.nn.AvgPool1d, 2d and 3d."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from simdp.spec import Bool
from simdp.workload.layers.base import Kept, Kernel, Shape
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.pooling import AveragePool, Bins, WindowPool


class AvgPool(AveragePool, WindowPool):
    """Base: mean over windows; the padding is zeros.

    Attributes
    ----------
    count_include_pad : bool
        Whether the zeros count in the mean.
    """

    count_include_pad: Bool = True

    def count(self, shape: Shape) -> Extents:
        return self.window.count(shape)

    def bins(self, axis: int, length: int, count: int) -> Bins:
        padding = self.padding[axis]
        begin = np.arange(count) * self.window.stride[axis] - padding
        end = np.minimum(begin + self.kernel_size[axis], length + padding)
        real = np.minimum(end, length) - np.maximum(begin, 0)
        return Bins(begin, end, end - begin if self.count_include_pad else real)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out * prod(self.kernel_size), (before + out) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
