"""Lengths: how many tokens each sample has, drawn from the scenario's seed."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.rng import stream
from simdp.spec import Spec
from simdp.workload.models import Model

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
