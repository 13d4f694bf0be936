"""Samples of one length."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.spec import Int
from simdp.workload.datasets.lengths.base import Lengths, Tokens


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
