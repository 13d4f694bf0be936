"""What rotary embeddings are told: how fast each pair of columns turns, as transformers has it."""

from __future__ import annotations

from math import ceil, floor, log, pi
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Floats
from simdp.spec import Bool, Float, Int, Spec, problem

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
"""Keys that each rope_type cannot do without."""

OTHERS = {"default": (), "linear": (), "llama3": (), "yarn": ("attention_factor", "beta_fast")}
OTHERS["yarn"] += ("beta_slow", "mscale", "mscale_all_dim", "truncate")
"""Keys that it may have beside them."""


class RopeScaling(Spec):
    """How waves that were learned on short samples are stretched for longer ones.

    Attributes
    ----------
    rope_type : {"default", "linear", "llama3", "yarn"}
        Not at all; all by one factor; the long ones by a factor, the short ones not at all; or as
        YaRN (Peng et al., arXiv 2309.00071), which scales attention too.
    factor : float or None
        How many times as long samples become.
    original_max_position_embeddings : int or None
        Tokens of the longest samples before.
    low_freq_factor, high_freq_factor : float or None
        llama3: waves that fit less often than the first into the old length are stretched, those
        that fit more often than the second stay; between them both are mixed.
    attention_factor : float or None
        yarn: what cosines and sines are multiplied with; by default ``0.1 ln(factor) + 1``.
    beta_fast, beta_slow : float or None
        yarn: turns within the old length above which waves stay, and below which they are
        stretched; 32 and 1 by default.
    mscale, mscale_all_dim : float or None
        yarn: two numbers from which the attention factor comes instead.
    truncate : bool or None
        yarn: whether the borders are rounded to whole columns; by default they are.
    """

    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: Float | None = Field(None, ge=1)
    original_max_position_embeddings: Int | None = Field(None, ge=1, le=10**8)
    low_freq_factor: Float | None = Field(None, gt=0)
    high_freq_factor: Float | None = Field(None, gt=0)
    attention_factor: Float | None = Field(None, gt=0)
    beta_fast: Float | None = Field(None, gt=0)
    beta_slow: Float | None = Field(None, gt=0)
    mscale: Float | None = Field(None, gt=0)
    mscale_all_dim: Float | None = Field(None, gt=0)
    truncate: Bool | None = None

    @model_validator(mode="after")
    def _keys_suit_the_type(self) -> Self:
        kind = self.rope_type
        for key in NEEDED[kind]:
            if getattr(self, key) is None:
                raise problem(f"{key} is required for rope_type: {kind}; add it.")
        idle = set().union(*NEEDED.values(), *OTHERS.values()) - {*NEEDED[kind], *OTHERS[kind]}
        for key in sorted(idle):
            if getattr(self, key) is not None:
                raise problem(f"{key} is of no use to rope_type: {kind}; leave it out.")
        low, high = self.low_freq_factor or 0, self.high_freq_factor or 1
        if low >= high:
            raise problem(
                f"high_freq_factor: {high:g} must be above low_freq_factor {low:g}; enlarge it."
            )
        return self


class RopeParameters(RopeScaling):
    """`RopeScaling`, with what waves there are at first: transformers' rope_parameters.

    Attributes
    ----------
    rope_theta : float
        Of ``theta^(-2 i / d)``, the speed of pair i.
    partial_rotary_factor : float
        Share of a head's columns that turn; the others stay.
    """

    rope_theta: Float = Field(10000.0, gt=1)
    partial_rotary_factor: Float = Field(1.0, gt=0, le=1)

    def columns(self, head_dim: int) -> int:
        """How many of a head's columns turn: an even number."""
        return int(head_dim * self.partial_rotary_factor) // 2 * 2

    def speeds(self, columns: int) -> tuple[Floats, float]:
        """How fast each pair of columns turns, and what its wave is multiplied with.

        Parameters
        ----------
        columns : int
            From `columns`.

        Returns
        -------
        (ndarray, float)
            Angles from one place to the next, shape `(columns / 2,)`, float64; and the factor.

        References
        ----------
        Su et al., "RoFormer: enhanced transformer with rotary position embedding", arXiv
        2104.09864; transformers/modeling_rope_utils.py.
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
        """Waves that fit ``t`` times into the old length, by where t is between both factors."""
        low, high = self.low_freq_factor or 0.0, self.high_freq_factor or 1.0
        share = (self._old_length * speeds / (2 * pi) - low) / (high - low)
        share = np.clip(share, 0, 1)
        found: Floats = (1 - share) * speeds / self._factor + share * speeds
        return found

    def _yarn(self, speeds: Floats, columns: int) -> Floats:
        def column(turns: float) -> float:
            """The pair that turns so often within the old length, as a broken number."""
            ratio = log(self._old_length / (turns * 2 * pi))
            return columns * ratio / (2 * log(self.rope_theta))

        low, high = column(self.beta_fast or 32.0), column(self.beta_slow or 1.0)
        if self.truncate is not False:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, columns - 1)
        if low == high:
            high += 0.001  # as transformers: no division by zero
        ramp = np.clip((np.arange(columns // 2) - low) / (high - low), 0, 1)
        found: Floats = speeds / self._factor * ramp + speeds * (1 - ramp)
        return found

    def _attention_factor(self) -> float:
        def scale(by: float) -> float:
            return 0.1 * by * log(self._factor) + 1

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return scale(self.mscale) / scale(self.mscale_all_dim)
        return scale(1.0)
