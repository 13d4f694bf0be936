"""Distributions of sequence lengths."""

from __future__ import annotations

from abc import abstractmethod
from math import exp
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Floats, Ints
from simdp.errors import ScenarioError
from simdp.family import Family
from simdp.files import read_csv
from simdp.rng import stream
from simdp.spec import Float, Int, Spec, one_of, problem
from simdp.workload.models import Model

__path__: list[str] = []  # for old names of submodules, see simdp.moved

LONGEST = 10**6
"""Most tokens of a sample."""

USUAL_LENGTH = 32
"""Tokens of a sample where neither the data nor the model say."""


class Lengths(Spec):
    """A distribution of lengths, in whole tokens of 1 or more."""

    kind: str

    @abstractmethod
    def shortest(self, base: Path) -> int:
        """Fewest tokens of a sample; ``base`` is the folder that relative paths start from."""

    @abstractmethod
    def longest(self, base: Path) -> int | None:
        """Most tokens of a sample; None where there is no bound."""

    @abstractmethod
    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        """Tokens of each sample, shape `(num_samples,)`, before a bound from elsewhere."""

    def most(self, model: Model, base: Path) -> int:
        """Most tokens of a sample x of a model."""
        return self.longest(base) or most_taken(model)

    def of_samples(self, num_samples: int, most: int, seed: int, base: Path) -> Ints:
        """Tokens of each sample of a data set, none above ``most``, shape `(num_samples,)`."""
        random = stream(seed, "dataset", "tokens", "lengths")
        return np.minimum(self.drawn(num_samples, base, random), most)


def most_taken(model: Model) -> int:
    """Tokens of x that a model takes, as far as it says."""
    shape = model.input_shapes().get("x")
    return shape[0] if shape else USUAL_LENGTH


Tokens = Field(ge=1, le=LONGEST)
"""A number of tokens."""


# Lengths ------------------------------------------------------------------------------------------

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


# Empirical ----------------------------------------------------------------------------------------


class LengthQuantile(Spec):
    """A point of the distribution.

    Attributes
    ----------
    quantile : float
        Part of the samples that are no longer.
    length : int
        Tokens that these have at most.
    """

    quantile: Float = Field(ge=0, le=1)
    length: Int = Tokens


class EmpiricalLengths(Lengths):
    """Drawn from a measured distribution.

    Attributes
    ----------
    quantiles : list of LengthQuantile or None
        In rising order, from quantile 0, the shortest sample, to 1, the longest; straight lines lie
        between.
    path : str or None
        In their place a CSV file with the columns ``length`` and ``count``; relative to the
        scenario file.
    """

    kind: Literal["empirical"] = "empirical"
    quantiles: Annotated[list[LengthQuantile], Field(min_length=2)] | None = None
    path: str | None = None

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
            found: Ints = lengths[np.searchsorted(shares, drawn, side="right")].astype(np.int64)
        else:
            found = np.rint(np.interp(drawn, shares, lengths)).astype(np.int64)
        return found

    def _points(self, base: Path) -> tuple[Floats, Floats]:
        """Lengths in rising order, and the share of the samples up to each."""
        if self.quantiles is not None:
            shares = np.array([point.quantile for point in self.quantiles])
            return np.array([float(point.length) for point in self.quantiles]), shares
        lengths, counts = _counted(base / (self.path or ""))
        shares = np.cumsum(counts) / counts.sum()
        shares[-1] = 1.0  # whatever sums of fractions come to
        return lengths, shares


def _counted(path: Path) -> tuple[Floats, Floats]:
    """Lengths of a file in rising order, and how many samples have each; none without samples."""
    found: dict[int, float] = {}
    for row in read_csv(path, ("length", "count")):
        if not (row.name.isascii() and row.name.isdigit() and 1 <= int(row.name) <= LONGEST):
            raise ScenarioError(
                [
                    f"{path}:{row.line}: length {row.name!r} is no number of tokens; write "
                    f"1 ... {LONGEST}."
                ]
            )
        found[int(row.name)] = row.numbers["count"]
    known = {length: count for length, count in sorted(found.items()) if count}
    if not known:
        raise ScenarioError([f"{path}: counts no sample; give at least one length a count."])
    return np.array([float(one) for one in known]), np.array(list(known.values()))


# Fixed --------------------------------------------------------------------------------------------


class Fixed(Lengths):
    """Every sample has ``length`` tokens.

    Attributes
    ----------
    length : int
        Tokens.
    """

    kind: Literal["fixed"] = "fixed"
    length: Int = Tokens

    def shortest(self, base: Path) -> int:
        return self.length

    def longest(self, base: Path) -> int:
        return self.length

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        return np.full(num_samples, self.length)


# Lognormal ----------------------------------------------------------------------------------------


class LognormalLengths(Lengths):
    """``exp(mu + sigma z)`` with a standard normal z, cut to a range and rounded.

    What falls outside gets the nearest length in the range, as with ``numpy.clip``.

    Attributes
    ----------
    mu : float or None
        Mean of the logarithm of the length.
    median : float or None
        Half of the lengths are above it; in place of ``mu``, its logarithm.
    sigma : float
        Standard deviation of the logarithm.
    min : int
        Fewest tokens of a sample.
    max : int or None
        Most; by default what the model takes.
    """

    kind: Literal["lognormal"] = "lognormal"
    mu: Float | None = Field(None, ge=0, le=14)
    median: Float | None = Field(None, ge=1, le=LONGEST)
    sigma: Float = Field(ge=0)
    min: Int = Field(1, ge=1, le=LONGEST)
    max: Int | None = Field(None, ge=1, le=LONGEST)

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.mu is None) == (self.median is None):
            given = "neither of them is" if self.mu is None else "both are"
            raise problem(f"mu or median says where the lengths lie, but {given} given; give one.")
        if self.max is not None and self.min > self.max:
            raise problem(f"min {self.min} is above max {self.max}; exchange them.")
        return self

    def shortest(self, base: Path) -> int:
        return self.min

    def longest(self, base: Path) -> int | None:
        return self.max

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        median = exp(self.mu) if self.mu is not None else self.median or 1.0
        with np.errstate(over="ignore"):  # what is too long is cut
            lengths = median * np.exp(self.sigma * random.standard_normal(num_samples))
        found: Ints = np.rint(np.clip(lengths, self.min, self.max or LONGEST)).astype(np.int64)
        return found


# Uniform ------------------------------------------------------------------------------------------


class Uniform(Lengths):
    """Whole numbers from ``min`` to ``max``.

    Attributes
    ----------
    min, max : int
        Fewest and most tokens of a sample.
    """

    kind: Literal["uniform"] = "uniform"
    min: Int = Tokens
    max: Int = Tokens

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
