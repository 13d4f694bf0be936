"""The base of datasets, lengths of sequences, padding, and the dataset without data."""

from __future__ import annotations

from abc import abstractmethod
from math import exp
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Floats, Ints
from simdp.errors import ScenarioError
from simdp.family import Family
from simdp.rng import stream
from simdp.spec import Float, Int, Spec, one_of, problem
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models.base import Model


class Dataset(Spec):
    """Base of datasets."""

    kind: str

    usual_loss: ClassVar[str] = "mse"
    """Default loss, unless a file decides it."""

    @classmethod
    def loss_of(cls, given: object, base: Path) -> str:
        """Default loss of a workload, for the scenario's dataset, validated or not.

        ``base`` is the folder of relative paths.
        """
        return cls.usual_loss

    @property
    def has_samples(self) -> bool:
        """Whether there are samples, which may differ from each other."""
        return True

    @abstractmethod
    def length(self, base: Path) -> int:
        """Number of samples; ``base`` is the folder of relative paths."""

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        """Shape of a sample of each input, where the data defines it."""
        return {}

    @abstractmethod
    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        """Reason why these samples do not fit a model and a loss, or None."""

    @abstractmethod
    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        """Return the model's inputs and ``y``, each with the samples along the first axis.

        Class indices and tokens are int64, floats have any size; the workload casts floats to its
        dtype, and modifies no array in place. If the loss can ignore targets, meaningless ones hold
        its ``ignored_label()``.
        """

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints | None:
        """Tokens of each sample x, if the dataset draws them, else None."""
        return None

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        """Length of every sample without its padding, by input; empty without padding.

        The length of the input that `Model.target_follows` names includes all targets that count.
        """
        return {}


class Synthetic(Dataset):
    """Base of datasets drawn from the scenario's seed, in the model's shapes."""

    num_samples: Int = Field(1024, ge=1, le=10**9)
    """Samples of an epoch."""

    def length(self, base: Path) -> int:
        return self.num_samples

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        wrong = self.problem_with_model(model)
        if wrong:
            return f"{self.kind} {wrong}"
        targets = self.targets(model)
        if np.issubdtype(targets.dtype, np.floating):
            targets = loss.drawn(targets)
        wrong = loss.problem_with(targets, model.output_shape())
        return f"{self.kind} does not suit the loss {loss.kind}: {wrong}" if wrong else None

    def problem_with_model(self, model: Model) -> str | None:
        """Reason why the model cannot take these samples, by default real numbers x, or None."""
        for name in model.graph.inputs:
            if model.num_tokens(name) is not None:
                return f"draws real numbers, but the model takes tokens as {name}; use tokens."
            if name != "x":
                return f"draws x, but the model takes {name} too; use npz."
        return None

    @abstractmethod
    def targets(self, model: Model) -> Array:
        """One target with the shape and dtype of those of `arrays`; its value is arbitrary."""


def reach(counts: Array) -> Ints:
    """Length up to the last position that counts, at least 1; takes `(num_samples, length)`."""
    from_the_end = np.argmax(counts[:, ::-1], axis=1)
    return np.where(counts.any(axis=1), counts.shape[1] - from_the_end, 1)


def padded(tokens: Ints, lengths: Ints, filler: int, width: int) -> Ints:
    """Fill positions after each sample's length, and further columns up to a width.

    ``tokens``, shape `(num_samples, longest)`, is modified in place.
    """
    tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = filler
    beyond = np.full((len(tokens), width - tokens.shape[1]), filler)
    return np.concatenate([tokens, beyond], axis=1)


# Without data -------------------------------------------------------------------------------------

NUM_SAMPLES = 1024
"""Default samples of an epoch if only lengths are given, as for synthetic datasets."""


class NoData(Dataset):
    """For timing only: every step is full, with samples of full or of drawn lengths."""

    kind: Literal["none"] = "none"
    lengths: AnyLengths | None = None
    """Distribution of the samples' lengths; by default all have the model's full length. A
    micro-batch is padded to its longest sample."""
    num_samples: Int | None = Field(None, ge=1, le=10**9)
    """Samples of an epoch, with lengths; 1,024 by default."""

    usual_loss: ClassVar[str] = "none"

    @model_validator(mode="after")
    def _counts_what_differs(self) -> Self:
        if self.num_samples is not None and self.lengths is None:
            raise problem(
                "num_samples: without lengths all samples are equal and every step is full; add "
                "lengths, or leave this out."
            )
        return self

    @property
    def has_samples(self) -> bool:
        return self.lengths is not None

    def length(self, base: Path) -> int:
        return 0 if self.lengths is None else self.num_samples or NUM_SAMPLES

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        if self.lengths is None:
            return {}
        most = self.lengths.most(model, base)
        known = [name for name in model.graph.inputs if model.num_tokens(name) is not None]
        return {name: (most + (name == "tgt"),) for name in known}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        if self.lengths is None:
            return None
        for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
            if model.num_tokens(name) is None:
                return (
                    f"lengths are of tokens, but the model takes real numbers as {name}; leave "
                    "them out."
                )
            needed = self.lengths.most(model, base) + (name == "tgt")
            if needed > shape[0]:
                return (
                    f"lengths reach {needed} tokens in {name}, but the model takes {shape[0]}; "
                    "change one of them."
                )
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return {}

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints | None:
        if self.lengths is None:
            return None
        most = self.lengths.most(model, base)
        return self.lengths.of_samples(self.length(base), most, seed, base)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        lengths = self.drawn_lengths(model, seed, base)
        if lengths is None or self.lengths is None:
            return {}
        if self.lengths.shortest(base) == self.lengths.longest(base):
            return {}
        return {name: lengths + (name == "tgt") for name in model.graph.inputs}


# Distributions of lengths -------------------------------------------------------------------------

LONGEST = 10**6
"""Most tokens of a sample."""

USUAL_LENGTH = 32
"""Tokens of a sample if neither the data nor the model define them."""


class Lengths(Spec):
    """Base of distributions of lengths, in whole tokens from 1."""

    kind: str

    @abstractmethod
    def shortest(self, base: Path) -> int:
        """Fewest tokens of a sample; ``base`` is the folder of relative paths."""

    @abstractmethod
    def longest(self, base: Path) -> int | None:
        """Most tokens of a sample; None without a bound."""

    @abstractmethod
    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        """Tokens of each sample, shape `(num_samples,)`, without external bounds."""

    def most(self, model: Model, base: Path) -> int:
        """Most tokens of a model's sample x."""
        return self.longest(base) or most_taken(model)

    def of_samples(self, num_samples: int, most: int, seed: int, base: Path) -> Ints:
        """Tokens of each sample of a dataset, at most ``most``, shape `(num_samples,)`."""
        random = stream(seed, "dataset", "tokens", "lengths")
        return np.minimum(self.drawn(num_samples, base, random), most)


def most_taken(model: Model) -> int:
    """Maximum length of a model's input x; 32 if it has none."""
    shape = model.input_shapes().get("x")
    return shape[0] if shape else USUAL_LENGTH


Tokens = Field(ge=1, le=LONGEST)
"""A number of tokens."""


LENGTHS: Family[Lengths] = Family(
    "lengths",
    Lengths,
    __name__,
    {
        "empirical": "EmpiricalLengths",
        "fixed": "Fixed",
        "lognormal": "LognormalLengths",
        "uniform": "Uniform",
    },
)
AnyLengths = Annotated[Lengths, one_of("lengths", LENGTHS)]


class LengthQuantile(Spec):
    """A point of the distribution."""

    quantile: Float = Field(ge=0, le=1)
    """Share of the samples that are at most as long."""
    length: Int = Tokens
    """Length [tokens]."""


class EmpiricalLengths(Lengths):
    """Lengths drawn from a measured distribution."""

    kind: Literal["empirical"] = "empirical"
    quantiles: Annotated[list[LengthQuantile], Field(min_length=2)] | None = None
    """In ascending order, from quantile 0, the shortest sample, to 1, the longest; interpolated
    linearly."""
    path: str | None = None
    """Instead, a CSV file with the columns ``length`` and ``count``, relative to the scenario
    file."""

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.quantiles is None) == (self.path is None):
            given = "neither of them is" if self.path is None else "both are"
            raise problem(f"quantiles or path gives the lengths, but {given} given; give one.")
        if self.quantiles is not None:
            at = [point.quantile for point in self.quantiles]
            lengths = [point.length for point in self.quantiles]
            if (at[0], at[-1]) != (0, 1):
                raise problem(
                    "quantiles must begin with 0, the shortest sample, and end with 1, the longest."
                )
            if at != sorted(set(at)) or lengths != sorted(lengths):
                raise problem(
                    "quantiles must rise, and their lengths with them; put them in order."
                )
        return self

    def shortest(self, base: Path) -> int:
        return int(self._points(base)[0][0])

    def longest(self, base: Path) -> int:
        return int(self._points(base)[0][-1])

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        lengths, shares = self._points(base)
        drawn = random.random(num_samples)
        if self.quantiles is None:
            chosen: Ints = lengths[np.searchsorted(shares, drawn, side="right")].astype(np.int64)
        else:
            chosen = np.rint(np.interp(drawn, shares, lengths)).astype(np.int64)
        return chosen

    def _points(self, base: Path) -> tuple[Floats, Floats]:
        """Lengths in ascending order, and the share of the samples up to each."""
        if self.quantiles is not None:
            shares = np.array([point.quantile for point in self.quantiles])
            return np.array([float(point.length) for point in self.quantiles]), shares
        lengths, counts = _counted(base / (self.path or ""))
        shares = np.cumsum(counts) / counts.sum()
        shares[-1] = 1.0  # despite rounding
        return lengths, shares


def _counted(path: Path) -> tuple[Floats, Floats]:
    """Lengths of a file in ascending order, and their counts, without zeros."""
    from simdp.tables import read_csv  # few datasets have files of lengths

    counts: dict[int, float] = {}
    for row in read_csv(path, ("length", "count")):
        if not (row.name.isascii() and row.name.isdigit() and 1 <= int(row.name) <= LONGEST):
            raise ScenarioError(
                [
                    f"{path}:{row.line}: length {row.name!r} is not a number of tokens; write "
                    f"1 ... {LONGEST}."
                ]
            )
        counts[int(row.name)] = row.numbers["count"]
    known = {length: count for length, count in sorted(counts.items()) if count}
    if not known:
        raise ScenarioError([f"{path}: counts no sample; give at least one length a count."])
    return np.array(list(map(float, known))), np.array(list(known.values()))


class Fixed(Lengths):
    """Every sample has ``length`` tokens."""

    kind: Literal["fixed"] = "fixed"
    length: Int = Tokens
    """Tokens."""

    def shortest(self, base: Path) -> int:
        return self.length

    def longest(self, base: Path) -> int:
        return self.length

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        return np.full(num_samples, self.length)


class LognormalLengths(Lengths):
    """``exp(mu + sigma z)`` with a standard normal z, clipped to a range and rounded."""

    kind: Literal["lognormal"] = "lognormal"
    mu: Float | None = Field(None, ge=0, le=14)
    """Mean of the logarithm of the length."""
    median: Float | None = Field(None, ge=1, le=LONGEST)
    """Median of the length, instead of ``mu``, its logarithm."""
    sigma: Float = Field(ge=0)
    """Standard deviation of the logarithm."""
    min: Int = Field(1, ge=1, le=LONGEST)
    """Fewest tokens of a sample."""
    max: Int | None = Field(None, ge=1, le=LONGEST)
    """Most tokens; by default the model's maximum."""

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.mu is None) == (self.median is None):
            given = "neither of them is" if self.mu is None else "both are"
            raise problem(f"mu or median defines the lengths, but {given} given; give one.")
        if self.max is not None and self.min > self.max:
            raise problem(f"min {self.min} is above max {self.max}; exchange them.")
        return self

    def shortest(self, base: Path) -> int:
        return self.min

    def longest(self, base: Path) -> int | None:
        return self.max

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        median = exp(self.mu) if self.mu is not None else self.median or 1.0
        with np.errstate(over="ignore"):  # clipped below
            lengths = median * np.exp(self.sigma * random.standard_normal(num_samples))
        return np.rint(np.clip(lengths, self.min, self.max or LONGEST)).astype(np.int64)


class Uniform(Lengths):
    """Whole numbers from ``min`` to ``max``."""

    kind: Literal["uniform"] = "uniform"
    min: Int = Tokens
    """Fewest and most tokens of a sample."""
    max: Int = Tokens
    """Fewest and most tokens of a sample."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.min > self.max:
            raise problem(f"min {self.min} is above max {self.max}; exchange them.")
        return self

    def shortest(self, base: Path) -> int:
        return self.min

    def longest(self, base: Path) -> int:
        return self.max

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        return random.integers(self.min, self.max, size=num_samples, endpoint=True)
