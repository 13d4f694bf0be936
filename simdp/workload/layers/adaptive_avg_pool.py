"""AdaptiveAvgPool: means over a grid of a given size; base of torch's layers of 1, 2 and 3 axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from simdp.workload.layers.base import Kept, Kernel, Shape
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.pooling import AveragePool, Bins
from simdp.workload.layers.shapes import image_shape


class AdaptiveAvgPool(AveragePool):
    """Base: mean over the cells of a grid; cell i begins at ``floor(i length / count)``.

    Attributes
    ----------
    output_size : tuple of int
        Cells along each axis; in YAML one number stands for all.
    """

    output_size: Extents

    def count(self, shape: Shape) -> Extents:
        image_shape(shape, len(self.output_size))
        return self.output_size

    def bins(self, axis: int, length: int, count: int) -> Bins:
        cell = np.arange(count)
        begin, end = cell * length // count, -(-(cell + 1) * length // count)
        return Bins(begin, end, end - begin)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = float(prod(inputs[0])), prod(self.output_shape(*inputs))
        return [Kernel(before, (before + out) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        # torch takes a plain mean for one cell, which keeps nothing.
        return Kept() if {*self.output_size} == {1} else Kept(inputs=(0,))
