"""LayerNorm over the last axis, as torch.nn.LayerNorm."""

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


class LayerNorm(Layer):
    """``(x - mean) / sqrt(variance + eps)`` of each row, times the weight, plus the bias.

    Attributes
    ----------
    normalized_shape : int or list of int
        Length of a row; or lengths of the last axes, which together are a row.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether each place of a row has a weight, and a bias.
    bias : bool
        Whether there is a bias beside the weight.
    """

    kind: Literal["layer_norm"] = "layer_norm"
    normalized_shape: Rows
    eps: Float = Field(1e-5, ge=0)
    elementwise_affine: Bool = True
    bias: Bool = True

    splits_backward: ClassVar[bool] = True

    @property
    def _row(self) -> int:
        """Numbers of a row."""
        return prod(row_shape(self.normalized_shape))

    def parameters(self) -> list[Parameter]:
        shape = row_shape(self.normalized_shape)
        weight = Parameter(f"{self.name}.weight", shape, constant(1.0))
        bias = Parameter(f"{self.name}.bias", shape, constant(0.0))
        return [weight, bias][: self.elementwise_affine * (1 + self.bias)]

    def output_shape(self, *inputs: Shape) -> Shape:
        check_rows(inputs[0], self.normalized_shape)
        return inputs[0]

    def _tensors(self, run: Pass) -> tuple[Array | None, Array | None]:
        """Weight and bias, where they exist."""
        found = [run.parameters[parameter.name].reshape(-1) for parameter in self.parameters()]
        weight, bias = (*found, None, None)[:2]
        return weight, bias

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0].reshape(-1, self._row)
        weight, bias = self._tensors(run)
        y, hat = np.empty_like(x), np.empty_like(x)
        inverse = np.empty((len(x), 1), dtype=x.dtype)
        average = np.full(self._row, 1 / self._row, dtype=x.dtype)
        for rows in blocks(len(x), self._row):
            centred = np.subtract(x[rows], (x[rows] @ average)[:, None], out=hat[rows])
            variance = np.vecdot(centred, centred) * average[0]
            inverse[rows, 0] = 1 / np.sqrt(variance + x.dtype.type(self.eps))
            centred *= inverse[rows]
            if weight is None:
                y[rows] = centred
            else:
                np.multiply(centred, weight, out=y[rows])
            if bias is not None:
                y[rows] += bias
        return y.reshape(inputs[0].shape), (hat, inverse)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        hat, inverse = saved
        flat = dy.reshape(hat.shape)
        weight, _ = self._tensors(run)
        scale = np.ones(self._row, dtype=dy.dtype) if weight is None else weight
        share = scale / dy.dtype.type(self._row)
        dweight, dbias = np.zeros_like(scale), np.zeros_like(scale)
        dx = np.empty_like(flat) if needs[0] else None
        for rows in blocks(len(flat), self._row):
            projected = flat[rows] * hat[rows]
            ones = np.ones(len(projected), dtype=dy.dtype)
            dweight += ones @ projected
            dbias += ones @ flat[rows]
            if dx is None:
                continue
            # inverse (g - mean(g) - hat mean(g hat)) with g = dy weight
            part = np.multiply(flat[rows], scale, out=dx[rows])
            part -= (flat[rows] @ share)[:, None]
            np.multiply(hat[rows], (projected @ share)[:, None], out=projected)
            part -= projected
            part *= inverse[rows]
        for parameter, gradient in zip(self.parameters(), (dweight, dbias), strict=False):
            run.add_gradient(parameter.name, gradient.reshape(parameter.shape))
        return (None if dx is None else dx.reshape(dy.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(8 * size, 2 * size * itemsize, self._weight_nbytes(itemsize))]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """The input's gradient; weight and bias together."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        learned = [Kernel(4 * size, 2 * size * itemsize, weights)] * self.elementwise_affine
        return [Kernel(11 * size, 3 * size * itemsize, weights)] * needs[0] + learned

    def _weight_nbytes(self, itemsize: int) -> float:
        return float(sum(parameter.num_elements for parameter in self.parameters()) * itemsize)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        rows = float(prod(inputs[0])) / self._row
        return Kept(inputs=(0,), nbytes=2 * rows * itemsize)  # and two statistics of each row
