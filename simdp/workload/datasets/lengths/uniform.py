"""Lengths of which every one is as likely as the others."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Ints
from simdp.spec import Int, problem
from simdp.workload.datasets.lengths.base import Lengths, Tokens


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
