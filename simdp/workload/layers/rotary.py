"""Rotary: turns pairs of columns of queries and keys by angles that grow with the place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Int
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.rotary_parameters import RopeParameters
from simdp.workload.layers.shapes import sequence_shape


class Rotary(Layer):
    """Rotary position embedding: column i of a head turns together with column i + half.

    Takes queries or keys, head behind head. Products of a turned query with a turned key depend
    on how far apart they are, not on their places.

    Attributes
    ----------
    head_dim : int
        Columns of a head.
    rope : RopeParameters
        How fast pairs turn, and how many of the columns do.
    packed : bool
        Whether a head's query, key and value stand side by side, as in GPT-NeoX; then the first
        two turn.

    References
    ----------
    Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv 2104.09864.
    """

    kind: Literal["rotary"] = "rotary"
    head_dim: Int = Field(ge=2)
    rope: RopeParameters
    packed: Bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        _, width = sequence_shape(inputs[0])
        if width % (self.head_dim * (3 if self.packed else 1)):
            packed = " of queries, keys and values" if self.packed else ""
            raise ShapeError(
                f"takes heads of {self.head_dim} features{packed}, "
                f"but gets samples of shape {inputs[0]}"
            )
        return inputs[0]

    def _halves(self, x: Array) -> tuple[Array, Array]:
        """The columns that turn, in pairs, as views of shape `(batch, length, heads, half)`."""
        columns = self.rope.columns(self.head_dim)
        if self.packed:
            heads = x.reshape(*x.shape[:2], -1, 3, self.head_dim)[:, :, :, :2]
        else:
            heads = x.reshape(*x.shape[:2], -1, self.head_dim)
        return heads[..., : columns // 2], heads[..., columns // 2 : columns]

    def _turned(self, x: Array, sign: int) -> Array:
        columns = self.rope.columns(self.head_dim)
        whole = columns == self.head_dim and not self.packed
        x = np.ascontiguousarray(x)
        y: Array = np.empty_like(x) if whole else x.copy()
        cos, sin = waves(self.rope, columns, x.shape[1], x.dtype.name)
        if self.packed:
            cos, sin = cos[:, None], sin[:, None]
        (left, right), (new_left, new_right) = self._halves(x), self._halves(y)
        for part in blocks(len(x), prod(x.shape[1:])):
            np.multiply(left[part], cos, out=new_left[part])
            np.multiply(right[part], cos, out=new_right[part])
            turned = right[part] * sin
            if sign > 0:
                new_left[part] -= turned
                new_right[part] += np.multiply(left[part], sin, out=turned)
            else:
                new_left[part] += turned
                new_right[part] -= np.multiply(left[part], sin, out=turned)
        return y

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return self._turned(inputs[0], 1), None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (self._turned(dy, -1) if needs[0] else None,)

    # Costs, kernel by kernel, as transformers' apply_rotary_pos_emb launches them ---------------

    def _turning(self, inputs: Sequence[Shape]) -> tuple[float, float]:
        """Elements that turn; those that only have to be put beside them."""
        size = prod(inputs[0]) * (2 / 3 if self.packed else 1.0)
        turning = size * self.rope.columns(self.head_dim) / self.head_dim
        return turning, size if turning < size else 0.0

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Minus one half, halves swapped, times the cosine, times the sine, the sum."""
        size, joined = self._turning(inputs)
        return [
            Kernel(size / 2, size * itemsize),
            Kernel(0.0, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 3 * size * itemsize),
            *[Kernel(0.0, 2 * joined * itemsize)] * bool(joined),
        ]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Both products, minus one half, each half put into zeros, and three of them added."""
        size, joined = self._turning(inputs)
        half = [Kernel(0.0, size * itemsize), Kernel(0.0, size * itemsize)]
        found = [
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size / 2, size * itemsize),
            *half,
            *half,
            Kernel(size, 3 * size * itemsize),
            Kernel(size, 3 * size * itemsize),
            *[Kernel(0.0, 2 * joined * itemsize)] * bool(joined),
        ]
        return found if needs[0] else []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()  # cosines and sines are there once, for all layers


@lru_cache(maxsize=16)  # those of one step; 8,192 places of 128 columns take 4 MB
def waves(rope: RopeParameters, columns: int, length: int, dtype: str) -> tuple[Array, Array]:
    """Cosines and sines of the first places, shape `(length, 1, columns / 2)`.

    Parameters
    ----------
    rope : RopeParameters
        How fast pairs turn.
    columns : int
        How many columns do.
    length : int
        Places.
    dtype : str
        Of the arrays, which are worked out in float64.
    """
    speeds, factor = rope.speeds(columns)
    angle = np.arange(length)[:, None, None] * speeds
    cos, sin = ((factor * wave(angle)).astype(dtype) for wave in (np.cos, np.sin))
    for found in (cos, sin):
        found.setflags(write=False)  # they are handed out again and again
    return cos, sin
