"""Synthetic text: tokens for a language model, a classifier or a translator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.rng import stream
from simdp.spec import Float, Int, problem
from simdp.workload.datasets.lengths import LENGTHS, AnyLengths, Lengths
from simdp.workload.datasets.lengths.base import most_taken
from simdp.workload.datasets.padding import padded
from simdp.workload.datasets.sequences import Sequences, words
from simdp.workload.losses import Loss
from simdp.workload.models import Model

SIGMA = 0.5
"""Standard deviation of the logarithm of the lengths where only a median is given; a choice."""


class Tokens(Sequences):
    """Random tokens: to be continued, to be told apart or to be read backwards, as the model does.

    A language model finds that mostly the next token follows by number; a classifier that half of
    a sample's tokens are, by number modulo the classes, those of its class; a model with ``tgt``
    is to give x in reverse.

    Attributes
    ----------
    sequence_length : int or None
        Tokens of the longest samples; by default what the model takes, or 32.
    min_length : int or None
        Fewest tokens of a sample: lengths are uniform from here to ``sequence_length``.
    median_length : int or None
        Lengths are log-normal around this median instead, cut to the same range.
    sigma : float or None
        Standard deviation of the logarithm of the length; 0.5 where a median is given.
    lengths : Lengths or None
        How many tokens samples have, in place of these four.
    """

    kind: Literal["tokens"] = "tokens"
    sequence_length: Int | None = Field(None, ge=1, le=10**6)
    min_length: Int | None = Field(None, ge=1, le=10**6)
    median_length: Int | None = Field(None, ge=1, le=10**6)
    sigma: Float | None = Field(None, ge=0)
    lengths: AnyLengths | None = None

    @model_validator(mode="after")
    def _lengths_are_clear(self) -> Self:
        of_old = ("sequence_length", "min_length", "median_length", "sigma")
        twice = [key for key in of_old if getattr(self, key) is not None]
        if self.lengths is not None and twice:
            raise problem(f"lengths and {twice[0]} both say how long samples are; keep one.")
        if self.sigma is not None and self.median_length is None:
            raise problem("sigma spreads lengths around median_length; give that too.")
        known = [self.min_length, self.median_length, self.sequence_length]
        given = [length for length in known if length is not None]
        if given != sorted(given):
            raise problem("lengths must rise from min_length to median_length to sequence_length.")
        return self

    def shortest(self, model: Model, base: Path) -> int:
        if self.lengths is not None:
            return min(self.lengths.shortest(base), self.longest(model, base))
        if self.min_length is None and self.median_length is None:
            return self.longest(model, base)
        return self.min_length or 1

    def longest(self, model: Model, base: Path) -> int:
        if self.lengths is not None:
            return self.lengths.most(model, base)
        return self.sequence_length or most_taken(model)

    def source_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        low, high = self.shortest(model, base), self.longest(model, base)
        return self._distribution(low, high).of_samples(self.num_samples, high, seed, base)

    def _distribution(self, low: int, high: int) -> Lengths:
        """Of the lengths, whichever keys say it."""
        if self.lengths is not None:
            return self.lengths
        if self.median_length is None:
            return LENGTHS["uniform"].model_validate({"min": low, "max": high})
        sigma = SIGMA if self.sigma is None else self.sigma
        median = float(self.median_length)
        return LENGTHS["lognormal"].model_validate(
            {"median": median, "sigma": sigma, "min": low, "max": high}
        )

    def problem_with_tokens(self, model: Model) -> str | None:
        for name in model.graph.inputs:
            if not len(words(model, name)):
                special = "padding, begin and end" if name == "tgt" else "the padding"
                return f"finds no token in {name} beside {special}; give it a larger vocabulary."
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "tokens")
        lengths, longest = self.source_lengths(model, seed, base), self.longest(model, base)
        if "tgt" in model.graph.inputs:
            return self._reversed(model, loss, random, lengths, longest)
        if model.target_follows is None:
            return self._classes(model, random, lengths, longest)
        return self._continued(model, loss, random, lengths, longest)

    def _continued(
        self,
        model: Model,
        loss: Loss,
        random: np.random.Generator,
        lengths: Ints,
        longest: int,
    ) -> dict[str, Array]:
        known, size = words(model, "x"), (self.num_samples, longest + 1)
        steps = np.where(random.random(size) < 0.75, 1, random.integers(len(known), size=size))
        text = known[np.cumsum(steps, axis=1) % len(known)]
        ((width,),) = model.known_shapes()
        y = text[:, 1:] % model.output_shape()[-1]
        return {
            "x": padded(text[:, :-1], lengths, model.padding or 0, width),
            "y": padded(y, lengths, loss.ignored_label() or 0, width),
        }

    def _classes(
        self, model: Model, random: np.random.Generator, lengths: Ints, longest: int
    ) -> dict[str, Array]:
        known, classes = words(model, "x"), model.output_shape()[-1]
        labels = random.integers(classes, size=self.num_samples)
        numbers = random.integers(len(known), size=(self.num_samples, longest))
        of_class = numbers - numbers % classes + labels[:, None]
        numbers = np.where(random.random(numbers.shape) < 0.5, of_class, numbers) % len(known)
        ((width,),) = model.known_shapes()
        return {"x": padded(known[numbers], lengths, model.padding or 0, width), "y": labels}

    def _reversed(
        self,
        model: Model,
        loss: Loss,
        random: np.random.Generator,
        lengths: Ints,
        longest: int,
    ) -> dict[str, Array]:
        num_words = min(len(words(model, name)) for name in ("x", "tgt"))
        source = random.integers(num_words, size=(self.num_samples, longest))
        backwards = np.maximum(lengths[:, None] - 1 - np.arange(longest), 0)
        target = np.take_along_axis(source, backwards, axis=1)
        return self.translated(model, loss, source, target, lengths)
