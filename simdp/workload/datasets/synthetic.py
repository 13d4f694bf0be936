"""Datasets generated from a seed."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Ints, product
from simdp.rng import stream
from simdp.spec import Float, Int, problem
from simdp.workload.datasets.base import LENGTHS, AnyLengths, Lengths, Synthetic, most_taken, padded
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models.base import Model


class Blobs(Synthetic):
    """Normal clouds around a random centre per class; y holds class indices.

    The number of classes is the length of the model's last output axis.
    """

    kind: Literal["blobs"] = "blobs"

    usual_loss: ClassVar[str] = "cross_entropy"

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()[:-1]), dtype=np.int64)

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "blobs")
        *positions, classes = model.output_shape()
        (shape,) = model.known_shapes()
        centres = random.standard_normal((classes, *shape))
        labels = random.integers(classes, size=self.num_samples)
        x = centres[labels] + random.standard_normal((self.num_samples, *shape))
        y = np.broadcast_to(
            labels.reshape(-1, *[1] * len(positions)), (self.num_samples, *positions)
        )
        return {"x": x, "y": y.astype(np.int64)}


GRID = 4
"""Coloured patches along each side of an image."""


class Images(Synthetic):
    """Random images of the model's size: coarse patches of the class's colours, under noise.

    The number of classes is that of the model's outputs; colours and noise are normal with variance
    1.
    """

    kind: Literal["images"] = "images"

    usual_loss: ClassVar[str] = "cross_entropy"

    def problem_with_model(self, model: Model) -> str | None:
        wrong = super().problem_with_model(model)
        if wrong:
            return wrong
        (shape,) = model.known_shapes()
        if len(shape) != 3:
            return f"has samples of channels, rows and columns, but the model takes {shape}."
        return None

    def targets(self, model: Model) -> Array:
        return np.zeros(1, dtype=np.int64)

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "images")
        ((channels, height, width),) = model.known_shapes()
        (classes,) = model.output_shape()
        colours = random.standard_normal((classes, channels, GRID, GRID), dtype=np.float32)
        labels = random.integers(classes, size=self.num_samples)
        x = random.standard_normal((self.num_samples, channels, height, width), dtype=np.float32)
        chosen = colours[labels]
        for row, column in np.ndindex(GRID, GRID):
            rows = slice(row * height // GRID, (row + 1) * height // GRID)
            columns = slice(column * width // GRID, (column + 1) * width // GRID)
            x[:, :, rows, columns] += chosen[:, :, row, column, None, None]
        return {"x": x, "y": labels}


class Regression(Synthetic):
    """Normal x of the model's input shape; y = x A + noise, of the model's output shape."""

    kind: Literal["regression"] = "regression"

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()))

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "regression")
        (shape,) = model.known_shapes()
        num_in = prod(shape)
        num_out = prod(model.output_shape())
        x = random.standard_normal((self.num_samples, num_in))
        teacher = random.standard_normal((num_in, num_out)) / np.sqrt(num_in)
        y = product(x, teacher) + 0.1 * random.standard_normal((self.num_samples, num_out))
        y = loss.drawn(y.reshape(-1, *model.output_shape()))
        return {"x": x.reshape(-1, *shape), "y": y}


class Sequences(Synthetic):
    """Base of samples x of tokens, padded to the longest; for seq2seq also tgt.

    y is a sentence and an end token; tgt is a begin token and the sentence, so that at each
    position the decoder has seen all earlier words. Begin and end are the first two tokens besides
    the padding.
    """

    usual_loss: ClassVar[str] = "cross_entropy"

    @abstractmethod
    def shortest(self, model: Model, base: Path) -> int:
        """Fewest tokens of a sample x."""

    @abstractmethod
    def longest(self, model: Model, base: Path) -> int:
        """Most tokens of a sample x."""

    @abstractmethod
    def source_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        """Tokens of each sample x, shape `(num_samples,)`."""

    def problem_with_tokens(self, model: Model) -> str | None:
        """Further reason why the model does not fit, or None."""
        return None

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()[:-1]), dtype=np.int64)

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        known = [name for name in model.graph.inputs if model.num_tokens(name) is not None]
        return {name: (self.longest(model, base) + (name == "tgt"),) for name in known}

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        return self.source_lengths(model, seed, base)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        if not self._may_differ(model, base):
            return {}
        lengths = self.source_lengths(model, seed, base)
        return {name: lengths + (name == "tgt") for name in model.graph.inputs}

    def _may_differ(self, model: Model, base: Path) -> bool:
        """Whether samples can be padded: with a padding token, or in a causal model."""
        if model.padding is not None:
            return True
        return model.padding_is_unseen and self.shortest(model, base) < self.longest(model, base)

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        wrong = self.problem_with_model(model) or self._problem_with_lengths(model, base)
        return f"{self.kind} {wrong}" if wrong else super().problem_with(model, loss, base)

    def problem_with_model(self, model: Model) -> str | None:
        real = [name for name in model.graph.inputs if model.num_tokens(name) is None]
        if real:
            return f"draws tokens, but the model takes real numbers as {real[0]}; use npz."
        return self.problem_with_tokens(model)

    def _problem_with_lengths(self, model: Model, base: Path) -> str | None:
        low, high = self.shortest(model, base), self.longest(model, base)
        padded = self._may_differ(model, base)
        if low > high:
            return f"has min_length {low}, but its longest samples have {high} tokens."
        for name, (length,) in zip(model.graph.inputs, model.known_shapes(), strict=True):
            needed = high + (name == "tgt")
            if length < needed or (length > needed and not padded):
                return (
                    f"makes {name} of {needed} tokens, but the model takes {length}; "
                    "change one of them."
                )
        if low < high and not padded:
            return (
                f"has samples of {low} ... {high} tokens, but the model has no padding token; "
                "give it a pad_id, or all samples one length."
            )
        return None

    def translated(
        self, model: Model, loss: Loss, source: Ints, target: Ints, lengths: Ints
    ) -> dict[str, Array]:
        """Make x, tgt and y from numbers of words.

        ``source`` and ``target``, shape `(num_samples, longest)`, index `words` of x and tgt;
        ``lengths`` are the samples' numbers of words.
        """
        begin, end = begin_and_end(model)
        sentence = words(model, "tgt")[target]
        border = np.full((len(sentence), 1), begin)
        begun, ended = (
            np.concatenate(parts, axis=1) for parts in ([border, sentence], [sentence, border])
        )
        np.put_along_axis(ended, lengths[:, None], end, axis=1)
        x_width, tgt_width = (shape[0] for shape in model.known_shapes())
        filler, ignored = model.padding or 0, loss.ignored_label() or 0
        return {
            "x": padded(words(model, "x")[source], lengths, filler, x_width),
            "tgt": padded(begun, lengths + 1, filler, tgt_width),
            "y": padded(ended, lengths + 1, ignored, tgt_width),
        }


def words(model: Model, name: str) -> Ints:
    """Tokens of an input, without padding and, in ``tgt``, without begin and end."""
    tokens = _without_padding(model, name)
    return tokens[2:] if name == "tgt" else tokens


def begin_and_end(model: Model) -> tuple[int, int]:
    """Begin and end tokens of ``tgt``: the first two besides the padding."""
    begin, end = _without_padding(model, "tgt")[:2]
    return int(begin), int(end)


def _without_padding(model: Model, name: str) -> Ints:
    tokens = np.arange(model.num_tokens(name) or 0)
    return tokens if model.padding is None else np.delete(tokens, model.padding)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Digits(Sequences):
    """Numbers of several digits, and the same as words; for a transformer of task seq2seq.

    With padding 0, the digits are the tokens 1 ... 10 of x, and the words 3 ... 12 of tgt and y,
    after the begin token, 1, and the end token, 2.
    """

    kind: Literal["digits"] = "digits"
    min_digits: Int = Field(1, ge=1, le=10**4)
    """Range of the random number of digits of a sample."""
    max_digits: Int = Field(6, ge=1, le=10**4)
    """Range of the random number of digits of a sample."""

    @model_validator(mode="after")
    def _digits_are_a_range(self) -> Self:
        if self.min_digits > self.max_digits:
            raise problem(
                f"min_digits is {self.min_digits}, but max_digits {self.max_digits}; "
                "make it no larger."
            )
        return self

    def shortest(self, model: Model, base: Path) -> int:
        return self.min_digits

    def longest(self, model: Model, base: Path) -> int:
        return self.max_digits

    def source_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        random = stream(seed, "dataset", "digits", "lengths")
        low, high = self.min_digits, self.max_digits
        return random.integers(low, high, size=self.num_samples, endpoint=True)

    def problem_with_tokens(self, model: Model) -> str | None:
        if "tgt" not in model.graph.inputs:
            return "needs a model with x and tgt: a transformer with task: seq2seq."
        special = [] if model.padding is None else ["padding"]
        for name, needed in (
            ("x", [*special, "ten digits"]),
            ("tgt", [*special, "begin", "end", "ten words"]),
        ):
            if len(words(model, name)) < len(WORDS):
                return (
                    f"needs {len(needed) + 9} tokens in {name}, for {', '.join(needed)}, but the "
                    f"model has {model.num_tokens(name)}; give it a larger vocabulary."
                )
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "digits")
        digits = random.integers(len(WORDS), size=(self.num_samples, self.max_digits))
        lengths = self.source_lengths(model, seed, base)
        return self.translated(model, loss, digits, digits, lengths)


def spelled(model: Model, name: str, tokens: Array) -> str:
    """Text of a row of ``name``: "x", "tgt" or "y" (also for predictions).

    ``"105"`` for x, else ``"one zero five"`` up to the end token; other tokens are skipped.
    """
    source = name == "x"
    known = words(model, "x" if source else "tgt")[: len(WORDS)].tolist()
    end = None if source else begin_and_end(model)[1]
    read = []
    for token in tokens.tolist():
        if token == end:
            break
        if token in known:
            read.append(known.index(token))
    return "".join(map(str, read)) if source else " ".join(WORDS[digit] for digit in read)


SIGMA = 0.5
"""Default standard deviation of the logarithm of the lengths; our choice."""


class Tokens(Sequences):
    """Random tokens to be continued, classified or reversed, depending on the model.

    A language model learns that mostly the next token follows by number; a classifier that half of
    a sample's tokens are, by number modulo the classes, those of its class; a model with ``tgt`` to
    reverse x.
    """

    kind: Literal["tokens"] = "tokens"
    sequence_length: Int | None = Field(None, ge=1, le=10**6)
    """Tokens of the longest samples; by default the model's maximum, or 32."""
    min_length: Int | None = Field(None, ge=1, le=10**6)
    """Fewest tokens of a sample: lengths are uniform from here to ``sequence_length``."""
    median_length: Int | None = Field(None, ge=1, le=10**6)
    """Lengths are log-normal around this median instead, clipped to the same range."""
    sigma: Float | None = Field(None, ge=0)
    """Standard deviation of the logarithm of the length; 0.5 with a median."""
    lengths: AnyLengths | None = None
    """Distribution of the lengths, instead of these four."""

    @model_validator(mode="after")
    def _lengths_are_clear(self) -> Self:
        of_old = ("sequence_length", "min_length", "median_length", "sigma")
        twice = [key for key in of_old if getattr(self, key) is not None]
        if self.lengths is not None and twice:
            raise problem(f"lengths and {twice[0]} both give the lengths of samples; keep one.")
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
        """The distribution of lengths defined by any of the keys."""
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
                return f"finds no token in {name} besides {special}; give it a larger vocabulary."
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
