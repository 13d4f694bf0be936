"""InstanceNorm: base of torch.nn.InstanceNorm1d, InstanceNorm2d and InstanceNorm3d."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.arrays.normalised import Rows
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.channel_groups import ChannelGroups
from simdp.workload.layers.parameter import Buffer
from simdp.workload.layers.shapes import check_channels


class InstanceNorm(ChannelGroups):
    """Base: norm over the pixels of each channel of each sample (arXiv 1607.08022).

    Attributes
    ----------
    num_features : int
        Channels.
    momentum : float or None
        Share of the new batch in the running statistics; None leaves them as they are.
    track_running_stats : bool
        Whether statistics are kept for after training.
    """

    axes: ClassVar[int]
    """Axes of a sample beside the channels."""

    num_features: Int = Field(ge=1, le=10**8)
    affine: Bool = False
    momentum: Float | None = Field(0.1, ge=0, le=1)
    track_running_stats: Bool = False

    @property
    def channels(self) -> int:
        return self.num_features

    @property
    def groups(self) -> int:
        return self.num_features

    def buffers(self) -> list[Buffer]:
        if not self.track_running_stats:
            return []
        return [
            Buffer(f"{self.name}.running_mean", (self.num_features,), 0.0),
            Buffer(f"{self.name}.running_var", (self.num_features,), 1.0),
            Buffer(f"{self.name}.num_batches_tracked", (), 0, integer=True),
        ]

    def output_shape(self, *inputs: Shape) -> Shape:
        check_channels(inputs[0], self.num_features, self.axes)
        if prod(inputs[0][1:]) == 1:
            raise ShapeError(
                f"normalises over one pixel, which leaves nothing of it: gets {inputs[0]}"
            )
        return inputs[0]

    def track(self, run: Pass, found: Rows) -> None:
        """Follow the mean of all samples' statistics; torch never counts the batches here."""
        if not self.track_running_stats or not self.momentum or not len(found.mean):
            return
        mean, variance, _ = (run.buffers[buffer.name] for buffer in self.buffers())
        length = found.hat.shape[1]
        unbiased = found.variance * (length / (length - 1))
        each = (-1, self.num_features)
        mean += self.momentum * (found.mean.reshape(each).mean(axis=0) - mean)
        variance += self.momentum * (unbiased.reshape(each).mean(axis=0) - variance)

    def evaluated(self) -> Layer:
        if not self.track_running_stats:
            return self
        return EvaluatedInstanceNorm(**self.model_dump(exclude={"kind"}))


class EvaluatedInstanceNorm(InstanceNorm):
    """Instance norm after training, by its running statistics.

    No table lists it, since it is what `simdp.workload.evaluation` makes of others.
    """

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
        each = (-1, *[1] * (x.ndim - 2))
        y: Array = x * scale.astype(x.dtype).reshape(each) + shift.astype(x.dtype).reshape(each)
        return y, None

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return super().forward_cost(inputs, itemsize)[1:]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
