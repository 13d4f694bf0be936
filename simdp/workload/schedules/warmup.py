"""Schedules with a warm-up, as in transformers."""

from __future__ import annotations

import math
from abc import abstractmethod
from math import sqrt
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from simdp.spec import Float, Int, problem
from simdp.workload.schedules.base import Count, Schedule


class ConstantWarmup(Schedule):
    """``lr(k) = base min(1, (k - 1) / warmup_steps)``, as Hugging Face's.

    transformers.get_constant_schedule_with_warmup.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["constant_warmup"] = "constant_warmup"
    warmup_steps: Count
    """Steps in which the rate rises; the first of them has rate 0."""

    def lr(self, base: float, step: int) -> float:
        return base * min(1.0, (step - 1) / self.warmup_steps)


WITHOUT_WARMUP = 10_000
"""Time scale without a warm-up."""


class InverseSqrt(Schedule):
    """``lr(k)`` rises evenly from 0 to base, then falls as one over the root of the steps.

    With ``e = k - 1`` and ``T = timescale``: ``lr(k) = base e / warmup_steps`` for ``e <
    warmup_steps``, then ``base sqrt(T / (e + T - warmup_steps))``:
    transformers.get_inverse_sqrt_schedule.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: Int = Field(ge=0, le=10**9)
    """Steps in which the rate rises; the first of them has rate 0."""
    timescale: Count | None = None
    """Steps after the warm-up in which the rate falls to ``1 / sqrt(2)``; by default warmup_steps,
    or 10,000 without a warm-up."""

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return base * (done / self.warmup_steps)
        scale = self.timescale or self.warmup_steps or WITHOUT_WARMUP
        return base / sqrt((done + scale - self.warmup_steps) / scale)


class Noam(Schedule):
    """``lr(k) = factor d_model^-0.5 min(k^-0.5, k warmup_steps^-1.5)``, independent of the base.

    Vaswani et al., "Attention is all you need", arXiv 1706.03762, equation 3.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["noam"] = "noam"
    d_model: Count
    """Width of the transformer."""
    warmup_steps: Count
    """Steps in which the rate rises."""
    factor: Float = Field(1.0, ge=0)
    """Factor of every rate."""

    def lr(self, base: float, step: int) -> float:
        rise_or_fall = min(step**-0.5, step * self.warmup_steps**-1.5)
        return float(self.factor * self.d_model**-0.5 * rise_or_fall)


class Warmup(Schedule):
    """``lr(k) = base (k - 1) / warmup_steps`` during the warm-up, then `rate`."""

    warmup_steps: Int = Field(ge=0, le=10**9)
    """Steps in which the rate rises; the first of them has rate 0."""
    total_steps: Count
    """Steps of the whole schedule."""

    @field_validator("total_steps")
    @classmethod
    def _warmup_fits(cls, value: int, info: ValidationInfo) -> int:
        warmup = info.data.get("warmup_steps", 0)
        if warmup > value:
            raise problem(f"{value} is less than warmup_steps, {warmup}; raise it or warm up less.")
        return value

    @abstractmethod
    def rate(self, base: float, done: int, steps: int) -> float:
        """Learning rate after ``done`` of ``steps`` steps that follow the warm-up."""

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return base * (done / self.warmup_steps)
        return self.rate(base, done - self.warmup_steps, self.total_steps - self.warmup_steps)


class CosineHardRestartsWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then follows a cosine to 0 several times.

    With ``x = (k - 1 - warmup_steps) / (total_steps - warmup_steps)`` after the warm-up: ``lr(k) =
    base (1 + cos(pi (num_cycles x mod 1))) / 2``, and 0 from ``x = 1`` on:
    transformers.get_cosine_with_hard_restarts_schedule_with_warmup.

    Attributes
    ----------
    total_steps : int
        Steps after which the rate is 0.
    """

    kind: Literal["cosine_hard_restarts_warmup"] = "cosine_hard_restarts_warmup"
    num_cycles: Count = 1
    """Number of times that the cosine goes from base to 0."""

    def rate(self, base: float, done: int, steps: int) -> float:
        share = done / max(1, steps)
        if share >= 1:
            return 0.0
        return base * (1 + math.cos(math.pi * (self.num_cycles * share % 1))) / 2


class CosineWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then follows a cosine to 0, as Hugging Face's.

    With ``e = k - 1``: ``lr(k) = base e / warmup_steps`` for ``e < warmup_steps``, then ``base (1 +
    cos(2 pi num_cycles (e - warmup_steps) / (total_steps - warmup_steps))) / 2``:
    transformers.get_cosine_schedule_with_warmup.

    Attributes
    ----------
    total_steps : int
        Steps after which the cosine has completed its cycles; it continues after them.
    """

    kind: Literal["cosine_warmup"] = "cosine_warmup"
    num_cycles: Float = Field(0.5, ge=0)
    """Periods of the cosine; half a period leads from base to 0."""

    def rate(self, base: float, done: int, steps: int) -> float:
        wave = math.cos(2 * math.pi * self.num_cycles * (done / max(1, steps)))
        return base * ((1 + wave) / 2)


class LinearWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then falls evenly to 0, as Hugging Face's.

    With ``e = k - 1``: ``lr(k) = base e / warmup_steps`` for ``e < warmup_steps``, then ``base
    max(0, (total_steps - e) / (total_steps - warmup_steps))``:
    transformers.get_linear_schedule_with_warmup.

    Attributes
    ----------
    total_steps : int
        Steps after which the rate is 0.
    """

    kind: Literal["linear_warmup"] = "linear_warmup"

    def rate(self, base: float, done: int, steps: int) -> float:
        return base * max(0.0, (steps - done) / max(1, steps))


class PolynomialWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then falls to lr_end along a polynomial.

    With ``x = (k - 1 - warmup_steps) / (total_steps - warmup_steps)`` after the warm-up: ``lr(k) =
    lr_end + (base - lr_end) (1 - x)^power``, and lr_end from ``x = 1`` on:
    transformers.get_polynomial_decay_schedule_with_warmup.

    Attributes
    ----------
    total_steps : int
        Steps after which the rate is lr_end.
    """

    kind: Literal["polynomial_warmup"] = "polynomial_warmup"
    lr_end: Float = Field(1e-7, ge=0)
    """Lowest learning rate."""
    power: Float = Field(1.0, ge=0)
    """Exponent of the polynomial."""

    def rate(self, base: float, done: int, steps: int) -> float:
        if done >= max(1, steps):
            return self.lr_end
        return float(self.lr_end + (base - self.lr_end) * (1 - done / steps) ** self.power)


Shape = Literal["linear", "cosine", "1-sqrt"]


class WarmupStableDecay(Schedule):
    """``lr(k)`` rises to base, stays there, and falls: a trapezoid, as Hugging Face's WSD.

    transformers.get_wsd_schedule; Hu et al., "MiniCPM", arXiv 2404.06395, section 4.
    """

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    warmup_steps: Int = Field(ge=0, le=10**9)
    """Length of each part; after them the lowest rate stays."""
    stable_steps: Int = Field(ge=0, le=10**9)
    """Length of each part; after them the lowest rate stays."""
    decay_steps: Int = Field(ge=0, le=10**9)
    """Length of each part; after them the lowest rate stays."""
    warmup_type: Shape = "linear"
    """Shape of rise and fall; with x the share of the part: ``1 - x``, ``(1 + cos(pi x)) / 2`` or
    ``1 - sqrt(x)`` down, and up the same with ``1 - x`` for x."""
    decay_type: Shape = "cosine"
    """Shape of rise and fall; with x the share of the part: ``1 - x``, ``(1 + cos(pi x)) / 2`` or
    ``1 - sqrt(x)`` down, and up the same with ``1 - x`` for x."""
    min_lr_ratio: Float = Field(0.0, ge=0, le=1)
    """Lowest rate over the base."""

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        falling = done - self.warmup_steps - self.stable_steps
        if done < self.warmup_steps:
            height = _height(self.warmup_type, 1 - done / self.warmup_steps)
        elif falling < 0:
            height = 1.0
        elif falling < self.decay_steps:
            height = _height(self.decay_type, falling / self.decay_steps)
        else:
            height = 0.0
        return base * (self.min_lr_ratio + (1 - self.min_lr_ratio) * height)


def _height(shape: Shape, share: float) -> float:
    if shape == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    return 1 - (share if shape == "linear" else math.sqrt(share))
