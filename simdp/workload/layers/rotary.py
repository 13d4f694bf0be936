"""Rotary position embeddings (RoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, floor, log, pi, prod
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Floats
from simdp.spec import Bool, Float, Int, Spec, problem
from simdp.workload.layers.base import (
    Gradients,
    Kept,
    Kernel,
    Layer,
    Needs,
    Pass,
    Shape,
    ShapeError,
    blocks,
    sequence_shape,
)

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Required keys by rope_type."""

OTHERS = {"default": (), "linear": (), "llama3": (), "yarn": ("attention_factor", "beta_fast")}
OTHERS["yarn"] += ("beta_slow", "mscale", "mscale_all_dim", "truncate")
"""Optional keys by rope_type."""


class RopeScaling(Spec):
    """Scaling of rotary wavelengths for samples longer than those of training."""

    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    """None; all wavelengths by one factor; only long ones; or YaRN (Peng et al., arXiv 2309.00071),
    which scales attention too."""
    factor: Float | None = Field(None, ge=1)
    """Ratio of new to original length."""
    original_max_position_embeddings: Int | None = Field(None, ge=1, le=10**8)
    """Original maximum length [tokens]."""
    low_freq_factor: Float | None = Field(None, gt=0)
    """llama3: waves with fewer periods than the first in the original length are stretched, those
    with more than the second stay; in between both are mixed."""
    high_freq_factor: Float | None = Field(None, gt=0)
    """llama3: waves with fewer periods than the first in the original length are stretched, those
    with more than the second stay; in between both are mixed."""
    attention_factor: Float | None = Field(None, gt=0)
    """yarn: factor of cosines and sines; by default ``0.1 ln(factor) + 1``."""
    beta_fast: Float | None = Field(None, gt=0)
    """yarn: rotations within the original length above which waves stay, and below which they are
    stretched; 32 and 1 by default."""
    beta_slow: Float | None = Field(None, gt=0)
    """yarn: rotations within the original length above which waves stay, and below which they are
    stretched; 32 and 1 by default."""
    mscale: Float | None = Field(None, gt=0)
    """yarn: two numbers that define the attention factor instead."""
    mscale_all_dim: Float | None = Field(None, gt=0)
    """yarn: two numbers that define the attention factor instead."""
    truncate: Bool | None = None
    """yarn: whether the borders are rounded to whole columns; true by default."""

    @model_validator(mode="after")
    def _keys_suit_the_type(self) -> Self:
        kind = self.rope_type
        for key in NEEDED[kind]:
            if getattr(self, key) is None:
                raise problem(f"{key} is required for rope_type: {kind}; add it.")
        idle = set().union(*NEEDED.values(), *OTHERS.values()) - {*NEEDED[kind], *OTHERS[kind]}
        for key in sorted(idle):
            if getattr(self, key) is not None:
                raise problem(f"{key} has no effect with rope_type: {kind}; leave it out.")
        low, high = self.low_freq_factor or 0, self.high_freq_factor or 1
        if low >= high:
            raise problem(
                f"high_freq_factor: {high:g} must be above low_freq_factor {low:g}; enlarge it."
            )
        return self


class RopeParameters(RopeScaling):
    """`RopeScaling` with the base of the frequencies: transformers' rope_parameters."""

    rope_theta: Float = Field(10000.0, gt=1)
    """Pair i rotates by ``theta^(-2 i / d)`` per position."""
    partial_rotary_factor: Float = Field(1.0, gt=0, le=1)
    """Share of a head's columns that rotate."""

    def columns(self, head_dim: int) -> int:
        """Number of columns of a head that rotate, an even number."""
        return int(head_dim * self.partial_rotary_factor) // 2 * 2

    def speeds(self, columns: int) -> tuple[Floats, float]:
        """Angle of each pair of columns per position, `(columns / 2,)`, and the waves' factor.

        Su et al., arXiv 2104.09864; transformers/modeling_rope_utils.py.
        """
        speeds = self.rope_theta ** -(np.arange(0, columns, 2) / columns)
        if self.rope_type == "linear":
            return speeds / self._factor, 1.0
        if self.rope_type == "llama3":
            return self._llama3(speeds), 1.0
        if self.rope_type == "yarn":
            return self._yarn(speeds, columns), self._attention_factor()
        return speeds, 1.0

    @property
    def _factor(self) -> float:
        return self.factor or 1.0

    @property
    def _old_length(self) -> int:
        return self.original_max_position_embeddings or 1

    def _llama3(self, speeds: Floats) -> Floats:
        """Stretch waves by their number of periods in the original length, between both factors."""
        low, high = self.low_freq_factor or 0.0, self.high_freq_factor or 1.0
        share = (self._old_length * speeds / (2 * pi) - low) / (high - low)
        share = np.clip(share, 0, 1)
        return (1 - share) * speeds / self._factor + share * speeds

    def _yarn(self, speeds: Floats, columns: int) -> Floats:
        def column(turns: float) -> float:
            """Fractional number of the pair that makes this many turns in the original length."""
            ratio = log(self._old_length / (turns * 2 * pi))
            return columns * ratio / (2 * log(self.rope_theta))

        low, high = column(self.beta_fast or 32.0), column(self.beta_slow or 1.0)
        if self.truncate is not False:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, columns - 1)
        if low == high:
            high += 0.001  # as transformers: no division by zero
        ramp = np.clip((np.arange(columns // 2) - low) / (high - low), 0, 1)
        frequencies: Floats = speeds / self._factor * ramp + speeds * (1 - ramp)
        return frequencies

    def _attention_factor(self) -> float:
        def scale(by: float) -> float:
            return 0.1 * by * log(self._factor) + 1

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return scale(self.mscale) / scale(self.mscale_all_dim)
        return scale(1.0)


class Rotary(Layer):
    """Rotary position embedding: column i of a head rotates together with column i + half.

    Takes queries or keys of all heads, concatenated. Products of a rotated query and key depend
    only on their distance.

    References
    ----------
    Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv 2104.09864.
    """

    kind: Literal["rotary"] = "rotary"
    head_dim: Int = Field(ge=2)
    """Columns of a head."""
    rope: RopeParameters
    """Speed of each pair, and share of columns that rotate."""
    packed: Bool = False
    """Whether a head's query, key and value are adjacent, as in GPT-NeoX; then the first two
    rotate."""

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
        """The rotating columns in two halves, as views of shape `(batch, length, heads, half)`."""
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

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        return self._turned(inputs[0], 1), None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        return (self._turned(dy, -1) if needs[0] else None,)

    # Costs: the kernels of transformers' apply_rotary_pos_emb ------------------------------------

    def _turning(self, inputs: Sequence[Shape]) -> tuple[float, float]:
        """Elements that rotate, and elements that are only copied back beside them."""
        size = prod(inputs[0]) * (2 / 3 if self.packed else 1.0)
        turning = size * self.rope.columns(self.head_dim) / self.head_dim
        return turning, size if turning < size else 0.0

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Negate one half, swap halves, times the cosine, times the sine, the sum."""
        size, joined = self._turning(inputs)
        return [
            Kernel(size / 2, size * itemsize),
            Kernel(0.0, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 3 * size * itemsize),
            *[Kernel(0.0, 2 * joined * itemsize)] * bool(joined),
        ]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Both products, negation, each half written into zeros, and the sums."""
        size, joined = self._turning(inputs)
        half = [Kernel(0.0, size * itemsize), Kernel(0.0, size * itemsize)]
        kernels = [
            Kernel(size, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize),
            Kernel(size / 2, size * itemsize),
            *half,
            *half,
            Kernel(size, 3 * size * itemsize),
            Kernel(size, 3 * size * itemsize),
            *[Kernel(0.0, 2 * joined * itemsize)] * bool(joined),
        ]
        return kernels if needs[0] else []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()  # cosines and sines exist once, for all layers


@lru_cache(maxsize=16)  # enough for one step; 8,192 positions of 128 columns take 4 MB
def waves(rope: RopeParameters, columns: int, length: int, dtype: str) -> tuple[Array, Array]:
    """Cosines and sines of the first positions, shape `(length, 1, columns / 2)`, from float64."""
    speeds, factor = rope.speeds(columns)
    angle = np.arange(length)[:, None, None] * speeds
    cos, sin = ((factor * wave(angle)).astype(dtype) for wave in (np.cos, np.sin))
    for table in (cos, sin):
        table.setflags(write=False)  # cached
    return cos, sin
