"""Batch normalization, instance normalization, and SyncBatchNorm.

SyncBatchNorm needs two collectives: forward gathers each rank's mean, variance and count (2 C + 1
numbers), backward sums two numbers per channel (2 C).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.errors import ScenarioError
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.base import (
    IMAGES,
    Buffer,
    Exchange,
    Gradients,
    KeepsInput,
    KeepsNothing,
    Kept,
    Kernel,
    Layer,
    Needs,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    Synchronised,
    blocks,
    channel_sum,
    channel_sums,
    channels_last,
    channels_second,
    check_channels,
    constant,
    folded,
    image_shape,
    repeated,
    rows_of,
)
from simdp.workload.layers.normalization import ChannelGroups, NormalizedRows

# Batch norm ---------------------------------------------------------------------------------------


def running_statistics(name: str, num_features: int) -> list[Buffer]:
    """Buffers of a norm with running statistics."""
    return [
        Buffer(f"{name}.running_mean", (num_features,), 0.0),
        Buffer(f"{name}.running_var", (num_features,), 1.0),
        Buffer(f"{name}.num_batches_tracked", (), 0, integer=True),
    ]


class BatchStatistics(NamedTuple):
    """Mean and variance per channel, float64, each over ``num_values`` values."""

    mean: Array
    variance: Array
    num_values: float


class Normalised(NamedTuple):
    """Input minus its mean, channels-last, and 1 / standard deviation, for backward."""

    centred: Array
    inverse: Array


Synced = tuple[Normalised, float]
"""For backward of a norm over all ranks, and their number of values."""


class BatchNormSettings(KeepsInput):
    """Arguments, tensors and costs shared by all batch norms; the channels are axis 1."""

    sample_axes: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    """Allowed numbers of axes of a sample, including the channels."""

    num_features: Int = Field(ge=1)
    """Channels."""
    eps: Float = Field(1e-5, ge=0)
    """Added to the variance."""
    momentum: Float | None = Field(0.1, ge=0, le=1)
    """Weight of the new batch in the running statistics; None averages over all batches."""
    affine: Bool = True
    """Whether each channel has a weight and a bias."""
    track_running_stats: Bool = True
    """Whether to keep running statistics for evaluation."""

    def parameters(self) -> list[Parameter]:
        if not self.affine:
            return []
        shape = (self.num_features,)
        return [
            Parameter(f"{self.name}.weight", shape, constant(1.0)),
            Parameter(f"{self.name}.bias", shape, constant(0.0)),
        ]

    def buffers(self) -> list[Buffer]:
        return running_statistics(self.name, self.num_features) * self.track_running_stats

    def output_shape(self, *inputs: Shape) -> Shape:
        if not inputs[0] or inputs[0][0] != self.num_features:
            raise ShapeError(
                f"takes {self.num_features} channels, but gets samples of shape {inputs[0]}"
            )
        if len(inputs[0]) not in self.sample_axes:
            forms = ["(channels,)", *(form for _, form in IMAGES.values())]
            listed = " or ".join(forms[axes - 1] for axes in self.sample_axes)
            raise ShapeError(f"takes samples of shape {listed}, but gets {inputs[0]}")
        return inputs[0]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(4 * size, size * itemsize), Kernel(4 * size, 2 * size * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        sums = Kernel(4 * size, 2 * size * itemsize)
        return [sums] + [Kernel(5 * size, 3 * size * itemsize)] * needs[0]

    def evaluated(self) -> Layer:
        return EvaluatedBatchNorm(**self.model_dump(exclude={"kind"}))

    def track(self, run: Pass, statistics: BatchStatistics) -> None:
        """Update the running statistics with a batch's; the variance is the unbiased one.

        Raises ScenarioError if there is one value per channel, which has no variance.
        """
        if statistics.num_values == 1:
            raise ScenarioError(
                [
                    f"{self.name or self.kind}: normalises over one value per channel, which "
                    "gives 0; raise microbatch, or write drop_last: true if only the last batch "
                    "is so small."
                ]
            )
        if not self.track_running_stats or not statistics.num_values:
            return
        mean, variance, batches = (run.buffers[buffer.name] for buffer in self.buffers())
        batches += 1
        share = 1.0 / float(batches) if self.momentum is None else self.momentum
        unbiased = statistics.variance * (statistics.num_values / (statistics.num_values - 1))
        mean += share * (statistics.mean - mean)
        variance += share * (unbiased - variance)

    def normalise(self, run: Pass, centred: Array, variance: Array) -> tuple[Array, Normalised]:
        """``centred / sqrt(variance + eps)``, times the weight, plus the bias."""
        inverse = 1 / np.sqrt(variance + self.eps)
        scale = inverse * run.parameters[f"{self.name}.weight"] if self.affine else inverse
        y = np.empty_like(centred)
        rows, out = rows_of(centred), rows_of(y)
        scales = repeated(scale, rows)
        biases = repeated(run.parameters[f"{self.name}.bias"], rows) if self.affine else None
        for block in blocks(*rows.shape):
            here = out[block]
            np.multiply(rows[block], scales, out=here)
            if biases is not None:
                here += biases
        return channels_second(y), Normalised(centred, inverse)

    def sums(self, run: Pass, saved: Normalised, dy: Array) -> tuple[Array, Array]:
        """Sum of dy and of dy times the normalised input, per channel; adds the weights' gradients.

        ``dy`` is channels-last.
        """
        total, projected = channel_sums(dy, saved.centred)
        projected *= saved.inverse
        if self.affine:
            run.add_gradient(f"{self.name}.weight", projected.astype(dy.dtype))
            run.add_gradient(f"{self.name}.bias", total.astype(dy.dtype))
        return total, projected

    def input_gradient(
        self, run: Pass, saved: Normalised, dy: Array, total: Array, projected: Array, count: float
    ) -> Array:
        """``weight / deviation (dy - total / count - normalised projected / count)``.

        ``total`` and ``projected`` are the results of `sums` over all ``count`` values that were
        normalised together; ``dy`` is channels-last.
        """
        centred, inverse = saved
        scale = inverse * run.parameters[f"{self.name}.weight"] if self.affine else inverse
        dx = np.empty_like(dy)
        given, slope, out = rows_of(centred), rows_of(dy), rows_of(dx)
        scales = repeated(scale, given)
        tilts = repeated(-scale * inverse * projected / count, given)
        shifts = repeated(-scale * total / count, given)
        for block in blocks(*given.shape):
            here = out[block]
            np.multiply(given[block], tilts, out=here)
            here += shifts
            here += slope[block] * scales
        return channels_second(dx)


class BatchNorm(BatchNormSettings):
    """Base of batch norms over the rank's own micro-batch."""

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Normalised]:
        statistics, centred = moments(inputs[0])
        self.track(run, statistics)
        return self.normalise(run, centred, statistics.variance)

    def backward(self, run: Pass, saved: Normalised, dy: Array, needs: Needs) -> Gradients:
        slope = channels_last(dy)
        total, projected = self.sums(run, saved, slope)
        if not needs[0]:
            return (None,)
        count = max(slope.size // self.num_features, 1)
        return (self.input_gradient(run, saved, slope, total, projected, count),)


class EvaluatedBatchNorm(BatchNormSettings):
    """Batch norm in evaluation: uses the running statistics, or the batch's if there are none.

    Not in the table of layers: only `Layer.evaluated` makes it.
    """

    kind: Literal["evaluated_batch_norm"] = "evaluated_batch_norm"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Normalised]:
        if not self.track_running_stats:
            statistics, centred = moments(inputs[0])
            return self.normalise(run, centred, statistics.variance)
        mean, variance, _ = (run.buffers[buffer.name] for buffer in self.buffers())
        last = channels_last(inputs[0])
        return self.normalise(run, last - mean.astype(last.dtype), variance)

    def backward(self, run: Pass, saved: object, dy: Array, needs: Needs) -> Gradients:
        """Not available in evaluation."""
        raise AssertionError(f"{self.name} is not learned from any more")

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        kernels = super().forward_cost(inputs, itemsize)
        return kernels[1:] if self.track_running_stats else kernels

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()


def moments(x: Array) -> tuple[BatchStatistics, Array]:
    """Statistics of a batch, and the batch minus its mean, channels-last; zeros without samples."""
    last = channels_last(x)
    count = last.size // last.shape[-1]
    centred = np.empty_like(last)
    rows, out = rows_of(last), rows_of(centred)
    mean = channel_sum(last) / max(count, 1)
    means, squares = repeated(mean, rows), np.zeros(rows.shape[1])
    for block in blocks(*rows.shape):
        here = out[block]
        np.subtract(rows[block], means, out=here)
        squares += np.einsum("ij,ij->j", here, here)
    variance = folded(squares, last) / max(count, 1)
    return BatchStatistics(mean, variance, float(count)), centred


class BatchNorm1d(BatchNorm):
    """Batch norm over samples (and positions); per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm1d"] = "batch_norm1d"

    sample_axes: ClassVar[tuple[int, ...]] = (1, 2)


class BatchNorm2d(BatchNorm):
    """Batch norm over samples and pixels; per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm2d"] = "batch_norm2d"

    sample_axes: ClassVar[tuple[int, ...]] = (3,)


class BatchNorm3d(BatchNorm):
    """Batch norm over samples and voxels; per rank, unless it is a SyncBatchNorm."""

    kind: Literal["batch_norm3d"] = "batch_norm3d"

    sample_axes: ClassVar[tuple[int, ...]] = (4,)


class InstanceNorm(ChannelGroups):
    """Base: norm over the pixels of each channel of each sample (arXiv 1607.08022)."""

    axes: ClassVar[int]
    """Spatial axes of a sample."""

    num_features: Int = Field(ge=1, le=10**8)
    """Channels."""
    affine: Bool = False
    momentum: Float | None = Field(0.1, ge=0, le=1)
    """Weight of the new batch in the running statistics; None leaves them unchanged."""
    track_running_stats: Bool = False
    """Whether to keep running statistics for evaluation."""

    @property
    def channels(self) -> int:
        return self.num_features

    @property
    def groups(self) -> int:
        return self.num_features

    def buffers(self) -> list[Buffer]:
        return running_statistics(self.name, self.num_features) * self.track_running_stats

    def output_shape(self, *inputs: Shape) -> Shape:
        check_channels(inputs[0], self.num_features, self.axes)
        if prod(inputs[0][1:]) == 1:
            raise ShapeError(f"normalises over one pixel, which gives 0: gets {inputs[0]}")
        return inputs[0]

    def track(self, run: Pass, normalized: NormalizedRows) -> None:
        """Move the statistics towards the mean over samples; torch counts no batches here."""
        if not self.track_running_stats or not self.momentum or not len(normalized.mean):
            return
        mean, variance, _ = (run.buffers[buffer.name] for buffer in self.buffers())
        length = normalized.hat.shape[1]
        unbiased = normalized.variance * (length / (length - 1))
        per_feature = (-1, self.num_features)
        mean += self.momentum * (normalized.mean.reshape(per_feature).mean(axis=0) - mean)
        variance += self.momentum * (unbiased.reshape(per_feature).mean(axis=0) - variance)

    def evaluated(self) -> Layer:
        if not self.track_running_stats:
            return self
        return EvaluatedInstanceNorm(**self.model_dump(exclude={"kind"}))


class EvaluatedInstanceNorm(InstanceNorm):
    """Instance norm in evaluation, with the running statistics; not in the table of layers."""

    kind: Literal["evaluated_instance_norm"] = "evaluated_instance_norm"

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        mean, variance, _ = (run.buffers[buffer.name] for buffer in self.buffers())
        scale = 1 / np.sqrt(variance + self.eps)
        shift = -mean * scale
        if self.affine:
            weight, bias = (run.parameters[p.name] for p in self.parameters())
            scale, shift = scale * weight, shift * weight + bias
        per_feature = (-1, *[1] * (x.ndim - 2))
        y: Array = x * scale.astype(x.dtype).reshape(per_feature) + shift.astype(x.dtype).reshape(
            per_feature
        )
        return y, None

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return super().forward_cost(inputs, itemsize)[1:]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()


class InstanceNorm1d(InstanceNorm):
    """Instance norm of series."""

    kind: Literal["instance_norm1d"] = "instance_norm1d"

    axes: ClassVar[int] = 1


class InstanceNorm2d(InstanceNorm):
    """Instance norm of images."""

    kind: Literal["instance_norm2d"] = "instance_norm2d"

    axes: ClassVar[int] = 2


class InstanceNorm3d(InstanceNorm):
    """Instance norm of volumes."""

    kind: Literal["instance_norm3d"] = "instance_norm3d"

    axes: ClassVar[int] = 3


class FrozenBatchNorm2d(KeepsNothing):
    """``(x - running_mean) weight / sqrt(running_var + eps) + bias``; all four are buffers."""

    kind: Literal["frozen_batch_norm2d"] = "frozen_batch_norm2d"
    num_features: Int = Field(ge=1)
    eps: Float = Field(1e-5, ge=0)

    def buffers(self) -> list[Buffer]:
        starts = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        return [
            Buffer(f"{self.name}.{part}", (self.num_features,), value)
            for part, value in starts.items()
        ]

    def output_shape(self, *inputs: Shape) -> Shape:
        if image_shape(inputs[0])[0] != self.num_features:
            raise ShapeError(
                f"takes {self.num_features} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        weight, bias, mean, variance = (run.buffers[buffer.name] for buffer in self.buffers())
        scale = (weight / np.sqrt(variance + self.eps)).astype(inputs[0].dtype)
        shift = (bias - mean * scale).astype(inputs[0].dtype)
        return inputs[0] * scale[:, None, None] + shift[:, None, None], scale

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        return (dy * saved[:, None, None] if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """A product and a sum."""
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * 2

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * needs[0]


class SyncBatchNorm(BatchNormSettings, Synchronised):
    """Batch norm over the samples of all ranks."""

    kind: Literal["sync_batch_norm"] = "sync_batch_norm"

    def exchanged_elements(self) -> tuple[int, int]:
        return 2 * self.num_features + 1, 2 * self.num_features

    def exchanged_forward(self, run: Pass, *inputs: Array) -> Exchange[tuple[Array, Synced]]:
        x = inputs[0]
        own, centred = moments(x)
        part = np.concatenate([own.mean, own.variance, [own.num_values]])
        rows = yield part.astype(x.dtype)
        statistics = _joined(rows.astype(np.float64), self.num_features)
        self.track(run, statistics)
        values = rows_of(centred)
        shifts = repeated(own.mean - statistics.mean, values)
        for block in blocks(*values.shape):
            values[block] += shifts
        y, saved = self.normalise(run, centred, statistics.variance)
        return y, (saved, statistics.num_values)

    def exchanged_backward(
        self, run: Pass, saved: Synced, dy: Array, needs: Needs
    ) -> Exchange[Gradients]:
        kept, count = saved
        slope = channels_last(dy)
        own = np.concatenate(self.sums(run, kept, slope))
        everyone = yield own.astype(dy.dtype)
        total, projected = np.split(everyone.astype(np.float64), 2)
        if not needs[0]:
            return (None,)
        return (self.input_gradient(run, kept, slope, total, projected, max(count, 1)),)


def _joined(rows: Array, num_features: int) -> BatchStatistics:
    """Mean and variance over all ranks' samples; ranks without samples have weight 0.

    ``variance = sum n_r (var_r + (mean_r - mean)^2) / n`` (Chan, Golub and LeVeque, 1979).
    """
    means, variances = rows[:, :num_features], rows[:, num_features:-1]
    weight = rows[:, -1:]
    count = weight.sum()
    mean = (weight * means).sum(axis=0) / max(count, 1)
    variance = (weight * (variances + (means - mean) ** 2)).sum(axis=0) / max(count, 1)
    return BatchStatistics(mean, variance, float(count))
