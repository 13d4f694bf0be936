"""ViTEmbeddings: patches of an image become tokens behind a class token, and all get places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.parameter import Parameter, normal
from simdp.workload.layers.shapes import image_shape


class ViTEmbeddings(Layer):
    """Takes a map of patches, gives ``[cls_token, patches row by row] + position_embeddings``.

    Attributes
    ----------
    num_patches : int
        Places of the map.
    hidden_size : int
        Its channels, the width of a token.

    References
    ----------
    Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021 (arXiv 2010.11929), equation 1;
    transformers/models/vit/modeling_vit.py.
    """

    kind: Literal["vit_embeddings"] = "vit_embeddings"
    num_patches: Int = Field(ge=1)
    hidden_size: Int = Field(ge=1)

    def parameters(self) -> list[Parameter]:
        cls, places = self._names
        d = self.hidden_size
        return [
            Parameter(cls, (1, 1, d), normal(0.02)),
            Parameter(places, (1, self.num_patches + 1, d), normal(0.02)),
        ]

    @property
    def _names(self) -> tuple[str, str]:
        return f"{self.name}.cls_token", f"{self.name}.position_embeddings"

    def ready_order(self) -> list[str]:
        return list(reversed(self._names))  # what is added last comes first

    def output_shape(self, *inputs: Shape) -> Shape:
        channels, height, width = image_shape(inputs[0])
        if (channels, height * width) != (self.hidden_size, self.num_patches):
            raise ShapeError(
                f"takes {self.num_patches} patches of {self.hidden_size} channels, "
                f"but gets samples of shape {inputs[0]}"
            )
        return (self.num_patches + 1, channels)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        cls, places = (run.parameters[name] for name in self._names)
        y: Array = np.empty((len(x), *self.output_shape(x.shape[1:])), dtype=x.dtype)
        y[:, :1] = cls
        y[:, 1:] = x.reshape(*x.shape[:2], self.num_patches).swapaxes(1, 2)
        y += places
        return y, x.shape

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        cls, places = self._names
        summed = dy.sum(axis=0, keepdims=True, out=run.room(places))
        first = run.room(cls)
        first[...] = summed[:, :1]
        run.add_gradient(places, summed)
        run.add_gradient(cls, first)
        if not needs[0]:
            return (None,)
        return (np.ascontiguousarray(dy[:, 1:].swapaxes(1, 2)).reshape(saved),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """The tokens are joined, then the places are added."""
        size = float(prod(self.output_shape(*inputs)))
        return [
            Kernel(0.0, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize, size * itemsize),
        ]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """The sums over the samples; the convolution gets a copy in its order."""
        size, d = float(prod(self.output_shape(*inputs))), float(self.hidden_size)
        copied = Kernel(0.0, 2.0 * prod(inputs[0]) * itemsize)
        return [
            Kernel(size, size * itemsize, size * itemsize),
            Kernel(d, d * itemsize, d * itemsize),
            *[copied] * needs[0],
        ]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
