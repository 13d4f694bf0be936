"""Layer, RMS and group normalization."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.base import (
    ArrayPair,
    Gradients,
    Kept,
    Kernel,
    Layer,
    Needs,
    Parameter,
    Pass,
    Rows,
    Shape,
    ShapeError,
    blocks,
    check_rows,
    constant,
    row_shape,
)


class Norm(Layer):
    """Base of the norms."""

    def _weight_nbytes(self, itemsize: int) -> float:
        return float(sum(parameter.num_elements for parameter in self.parameters()) * itemsize)


class RowNorm(Norm):
    """Base of norms over the last axes."""

    normalized_shape: Rows
    """Length of a row; or lengths of the last axes, which together form a row."""
    splits_backward: ClassVar[bool] = True

    @property
    def _row(self) -> int:
        return prod(row_shape(self.normalized_shape))

    def output_shape(self, *inputs: Shape) -> Shape:
        check_rows(inputs[0], self.normalized_shape)
        return inputs[0]


class LayerNorm(RowNorm):
    """``(x - mean) / sqrt(variance + eps)`` of each row, times the weight, plus the bias."""

    kind: Literal["layer_norm"] = "layer_norm"
    eps: Float = Field(1e-5, ge=0)
    """Added to the variance."""
    elementwise_affine: Bool = True
    """Whether each position of a row has a weight, and a bias."""
    bias: Bool = True
    """Whether there is a bias besides the weight."""

    def parameters(self) -> list[Parameter]:
        shape = row_shape(self.normalized_shape)
        weight = Parameter(f"{self.name}.weight", shape, constant(1.0))
        bias = Parameter(f"{self.name}.bias", shape, constant(0.0))
        return [weight, bias][: self.elementwise_affine * (1 + self.bias)]

    def _tensors(self, run: Pass) -> tuple[Array | None, Array | None]:
        """Weight and bias, or None."""
        tensors = [run.parameters[parameter.name].reshape(-1) for parameter in self.parameters()]
        weight, bias = (*tensors, None, None)[:2]
        return weight, bias

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, ArrayPair]:
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

    def backward(self, run: Pass, saved: ArrayPair, dy: Array, needs: Needs) -> Gradients:
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

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """The input's gradient, then weight and bias together."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        learned = [Kernel(4 * size, 2 * size * itemsize, weights)] * self.elementwise_affine
        return [Kernel(11 * size, 3 * size * itemsize, weights)] * needs[0] + learned

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        rows = float(prod(inputs[0])) / self._row
        return Kept(inputs=(0,), nbytes=2 * rows * itemsize)  # and two statistics of each row


FULL = 4
"""Bytes of a float32 number, the least precision of an unfused norm's kernels."""


class RMSNorm(RowNorm):
    """``x / sqrt(mean(x^2) + eps)`` of each row, times the weight.

    Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019 (arXiv 1910.07467).
    """

    kind: Literal["rms_norm"] = "rms_norm"
    eps: Float | None = Field(None, ge=0)
    """Added to the mean of the squares; by default the dtype's machine epsilon."""
    elementwise_affine: Bool = True
    """Whether each position of a row has a weight."""
    fused: Bool = True
    """One kernel, as in torch. Without it, kernel by kernel and in float32, as in transformers'
    LlamaRMSNorm: the same numbers, but more time and memory."""

    def parameters(self) -> list[Parameter]:
        weight = Parameter(f"{self.name}.weight", row_shape(self.normalized_shape), constant(1.0))
        return [weight] if self.elementwise_affine else []

    def _weight(self, run: Pass) -> Array | None:
        if not self.elementwise_affine:
            return None
        return run.parameters[f"{self.name}.weight"].reshape(-1)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, ArrayPair]:
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

    def backward(self, run: Pass, saved: ArrayPair, dy: Array, needs: Needs) -> Gradients:
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
        """Fused, or: cast to float32, squares, mean, root, product, cast back, times the weight."""
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

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """The input's and the weight's gradients."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        if self.fused:
            learned = [Kernel(2 * size, 2 * size * itemsize, weights)] * self.elementwise_affine
            return [Kernel(6 * size, 3 * size * itemsize, weights)] * needs[0] + learned
        learned = [Kernel(size, 3 * size * itemsize), Kernel(size, size * itemsize, weights)]
        below = self._input_kernels(size, itemsize, weights) if needs[0] else []
        return learned * self.elementwise_affine + below

    def _input_kernels(self, size: float, itemsize: int, weights: float) -> list[Kernel]:
        """Weight; product with 1 / rms, both ways; root, mean and squares."""
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
        """Casts between 16 bits and float32, if any."""
        return [Kernel(0.0, size * (itemsize + FULL))] * (itemsize < FULL)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """The input and 1 / rms per row; unfused, the float32 input and the normalised values."""
        size = float(prod(inputs[0]))
        rows, full = size / self._row, max(itemsize, FULL)
        if self.fused:
            return Kept(inputs=(0,), nbytes=rows * full)
        normalised = size * itemsize * self.elementwise_affine
        if itemsize < FULL:
            return Kept(nbytes=size * full + rows * full + normalised)
        return Kept(inputs=(0,), nbytes=rows * full + normalised)


class NormalizedRows(NamedTuple):
    """Normalised rows, for backward and for running statistics."""

    hat: Array
    """Normalised values; shape `(rows, length)`."""
    inverse: Array
    """``1 / sqrt(variance + eps)``; shape `(rows, 1)`."""
    mean: Array
    """Of each row; the variance divides by the length; shape `(rows,)`."""
    variance: Array
    """Of each row; the variance divides by the length; shape `(rows,)`."""


def normalised(x: Array, eps: float) -> NormalizedRows:
    """``(x - mean) / sqrt(variance + eps)`` of each row of x, shape `(rows, length)`."""
    hat, length = np.empty_like(x), x.shape[1]
    mean, variance = np.empty(len(x), dtype=x.dtype), np.empty(len(x), dtype=x.dtype)
    inverse = np.empty((len(x), 1), dtype=x.dtype)
    for rows in blocks(len(x), length):
        mean[rows] = x[rows].mean(axis=1)
        centred = np.subtract(x[rows], mean[rows, None], out=hat[rows])
        variance[rows] = np.vecdot(centred, centred) / length
        inverse[rows, 0] = 1 / np.sqrt(variance[rows] + x.dtype.type(eps))
        centred *= inverse[rows]
    return NormalizedRows(hat, inverse, mean, variance)


def gradient(normalized: NormalizedRows, slope: Array) -> Array:
    """Gradient of the rows: ``inverse (slope - mean(slope) - hat mean(slope hat))``.

    ``slope`` is the gradient of the normalised values, shape `(rows, length)`; it is overwritten by
    the result.
    """
    length = slope.shape[1]
    for rows in blocks(len(slope), length):
        here, hat = slope[rows], normalized.hat[rows]
        projected = np.vecdot(here, hat)[:, None] / length
        here -= here.mean(axis=1, keepdims=True)
        here -= hat * projected
        here *= normalized.inverse[rows]
    return slope


class ChannelGroups(Norm):
    """``(x - mean) / sqrt(variance + eps)`` of each group of channels of each sample."""

    eps: Float = Field(1e-5, ge=0)
    """Added to the variance."""
    affine: Bool = True
    """Whether each channel has a weight and a bias."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Number of channels of a sample."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Number of groups of equal size."""

    def parameters(self) -> list[Parameter]:
        shape = (self.channels,)
        weight = Parameter(f"{self.name}.weight", shape, constant(1.0))
        bias = Parameter(f"{self.name}.bias", shape, constant(0.0))
        return [weight, bias] * self.affine

    def track(self, run: Pass, normalized: NormalizedRows) -> None:
        """Update running statistics; by default there are none."""

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, NormalizedRows]:
        x = np.ascontiguousarray(inputs[0])
        normalized = normalised(x.reshape(len(x) * self.groups, -1), self.eps)
        self.track(run, normalized)
        y = normalized.hat.reshape(len(x), self.channels, -1)
        if self.affine:
            weight, bias = (run.parameters[p.name][:, None] for p in self.parameters())
            y = y * weight
            y += bias
        else:
            y = y.copy()
        return y.reshape(x.shape), normalized

    def backward(self, run: Pass, saved: NormalizedRows, dy: Array, needs: Needs) -> Gradients:
        slope = np.ascontiguousarray(dy).reshape(len(dy), self.channels, -1)
        if self.affine:
            weight, bias = (parameter.name for parameter in self.parameters())
            hat = saved.hat.reshape(slope.shape)
            run.add_gradient(weight, np.einsum("ncs,ncs->c", slope, hat))
            run.add_gradient(bias, slope.sum(axis=(0, 2)))
        if not needs[0]:
            return (None,)
        scale = run.parameters[f"{self.name}.weight"][:, None] if self.affine else dy.dtype.type(1)
        return (gradient(saved, (slope * scale).reshape(saved.hat.shape)).reshape(dy.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """One kernel computes the statistics, one applies them."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        return [Kernel(4 * size, size * itemsize), Kernel(4 * size, 2 * size * itemsize, weights)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Sums for all gradients, then the input's gradient."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        sums = Kernel(4 * size, 2 * size * itemsize, weights)
        wanted = needs[0] or self.affine
        return [sums] * wanted + [Kernel(5 * size, 3 * size * itemsize, weights)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=2.0 * self.groups * itemsize)  # and two statistics of each


class GroupNorm(ChannelGroups):
    """Norm over groups of channels, independent of the batch (Wu and He, arXiv 1803.08494)."""

    kind: Literal["group_norm"] = "group_norm"
    num_groups: Int = Field(ge=1)
    """Groups; a divisor of the channels."""
    num_channels: Int = Field(ge=1, le=10**8)
    """Channels."""

    autocast = "float32"

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.num_channels % self.num_groups:
            raise problem(
                f"num_groups: {self.num_groups} groups do not share num_channels "
                f"{self.num_channels} evenly; choose a divisor of it."
            )
        return self

    @property
    def channels(self) -> int:
        return self.num_channels

    @property
    def groups(self) -> int:
        return self.num_groups

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs[0] or inputs[0][0] != self.num_channels:
            raise ShapeError(
                f"takes {self.num_channels} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]
