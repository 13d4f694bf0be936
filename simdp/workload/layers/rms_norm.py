"""RMSNorm over the last axis, as torch.nn.RMSNorm, and as transformers' models have it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.parameter import Parameter, constant
from simdp.workload.layers.shapes import Rows, check_rows, row_shape

FULL = 4
"""Bytes of a number in float32, in which the parts of an unfused norm run at least."""


class RMSNorm(Layer):
    """``x / sqrt(mean(x^2) + eps)`` of each row, times the weight.

    Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019 (arXiv 1910.07467).

    Attributes
    ----------
    normalized_shape : int or list of int
        Length of a row; or lengths of the last axes, which together are a row.
    eps : float or None
        Added to the mean of the squares; by default the distance of 1 from the next larger number
        of the dtype.
    elementwise_affine : bool
        Whether each place of a row has a weight.
    fused : bool
        One kernel, as in torch. Without it, kernel by kernel and in float32, as in transformers'
        LlamaRMSNorm: the same numbers, but more time, and more that is kept.
    """

    kind: Literal["rms_norm"] = "rms_norm"
    normalized_shape: Rows
    eps: Float | None = Field(None, ge=0)
    elementwise_affine: Bool = True
    fused: Bool = True

    splits_backward: ClassVar[bool] = True

    @property
    def _row(self) -> int:
        """Numbers of a row."""
        return prod(row_shape(self.normalized_shape))

    def parameters(self) -> list[Parameter]:
        weight = Parameter(f"{self.name}.weight", row_shape(self.normalized_shape), constant(1.0))
        return [weight] if self.elementwise_affine else []

    def output_shape(self, *inputs: Shape) -> Shape:
        check_rows(inputs[0], self.normalized_shape)
        return inputs[0]

    def _weight(self, run: Pass) -> Array | None:
        if not self.elementwise_affine:
            return None
        return run.parameters[f"{self.name}.weight"].reshape(-1)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0].reshape(-1, self._row)
        weight, y = self._weight(run), np.empty_like(x)
        eps = np.finfo(x.dtype).eps if self.eps is None else self.eps
        inverse = np.empty((len(x), 1), dtype=x.dtype)
        for rows in blocks(len(x), self._row):
            mean = np.vecdot(x[rows], x[rows]) * x.dtype.type(1 / self._row)
            inverse[rows, 0] = 1 / np.sqrt(mean + x.dtype.type(eps))
            np.multiply(x[rows], inverse[rows], out=y[rows])
            if weight is not None:
                y[rows] *= weight
        return y.reshape(inputs[0].shape), (x, inverse)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        x, inverse = saved
        flat, weight = dy.reshape(x.shape), self._weight(run)
        scale = np.ones(self._row, dtype=dy.dtype) if weight is None else weight
        share = scale / dy.dtype.type(self._row)
        dweight = np.zeros_like(scale)
        dx = np.empty_like(flat) if needs[0] else None
        for rows in blocks(len(flat), self._row):
            hat = x[rows] * inverse[rows]
            projected = flat[rows] * hat
            dweight += np.ones(len(hat), dtype=dy.dtype) @ projected
            if dx is None:
                continue
            # inverse (g - hat mean(g hat)) with g = dy weight
            part = np.multiply(flat[rows], scale, out=dx[rows])
            hat *= (projected @ share)[:, None]
            part -= hat
            part *= inverse[rows]
        if weight is not None:
            shape = row_shape(self.normalized_shape)
            run.add_gradient(f"{self.name}.weight", dweight.reshape(shape))
        return (None if dx is None else dx.reshape(dy.shape),)

    # Costs ----------------------------------------------------------------------------------------

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """At once; or to float32, squares, mean, root, product, back again, times the weight."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        if self.fused:
            return [Kernel(4 * size, 2 * size * itemsize, weights)]
        full, rows = max(itemsize, FULL), size / self._row
        return [
            *self._casts(size, itemsize),
            Kernel(size, 2 * size * full),
            Kernel(size, (size + rows) * full),
            Kernel(2 * rows, 2 * rows * full),
            Kernel(size, (2 * size + rows) * full),
            *self._casts(size, itemsize),
            *[Kernel(size, 2 * size * itemsize, weights)] * self.elementwise_affine,
        ]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """The input's gradient; the weight's."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        if self.fused:
            learned = [Kernel(2 * size, 2 * size * itemsize, weights)] * self.elementwise_affine
            return [Kernel(6 * size, 3 * size * itemsize, weights)] * needs[0] + learned
        learned = [Kernel(size, 3 * size * itemsize), Kernel(size, size * itemsize, weights)]
        below = self._input_kernels(size, itemsize, weights) if needs[0] else []
        return learned * self.elementwise_affine + below

    def _input_kernels(self, size: float, itemsize: int, weights: float) -> list[Kernel]:
        """Times the weight; the product with 1 / rms, both ways; through root, mean and squares."""
        full, rows = max(itemsize, FULL), size / self._row
        return [
            *[Kernel(size, 2 * size * itemsize, weights)] * self.elementwise_affine,
            *self._casts(size, itemsize),
            Kernel(size, (2 * size + rows) * full),
            Kernel(size, 3 * size * full),
            Kernel(size, (size + rows) * full),
            Kernel(3 * rows, 3 * rows * full),
            Kernel(2 * size, (2 * size + rows) * full),
            Kernel(size, 3 * size * full),
            *self._casts(size, itemsize),
        ]

    def _casts(self, size: float, itemsize: int) -> list[Kernel]:
        """Between 16 bits and float32, where there are any."""
        return [Kernel(0.0, size * (itemsize + FULL))] * (itemsize < FULL)

    def _weight_nbytes(self, itemsize: int) -> float:
        return float(self._row * itemsize * self.elementwise_affine)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """The input and 1 / rms of each row; unfused, the input in float32, and what it became."""
        size = float(prod(inputs[0]))
        rows, full = size / self._row, max(itemsize, FULL)
        if self.fused:
            return Kept(inputs=(0,), nbytes=rows * full)
        normalised = size * itemsize * self.elementwise_affine
        if itemsize < FULL:
            return Kept(nbytes=size * full + rows * full + normalised)
        return Kept(inputs=(0,), nbytes=rows * full + normalised)
