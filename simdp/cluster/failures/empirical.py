"""Gaps as they were observed: from a file, or by their quantiles."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.arrays import Floats
from simdp.cluster.failures.hazard import chosen
from simdp.cluster.failures.renewal import Renewal
from simdp.cluster.failures.tables import lines_of, numbers
from simdp.spec import Seconds, problem
from simdp.units import format_quantity


class Empirical(Renewal):
    """``{kind: empirical, quantiles: [45 min, 75 min]}``: gaps between failures as observed.

    Attributes
    ----------
    path : str or None
        A CSV file of gaps, relative to the scenario, with the column ``gap_s``: each is as likely
        as the others, whatever their order.
    quantiles : list of float or None
        In place of a file, at equal steps from the shortest gap to the longest, with straight
        lines between them [s]; two are a uniform distribution.
    """

    kind: Literal["empirical"] = "empirical"
    path: str | None = None
    quantiles: list[Seconds] | None = Field(None, min_length=2)

    _parts: tuple[tuple[float, float], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Empirical:
        """Cut the gaps into parts of equal weight; a path starts from the context's ``base``."""
        if self._parts:
            return self
        if (self.path is None) == (self.quantiles is None):
            raise problem("give either path, a file of gaps, or quantiles.")
        if self.path is not None:
            base = Path((info.context or {}).get("base", ""))
            gaps = numbers(base / self.path, lines_of(base / self.path, ["gap_s"]), "gap_s")
            parts = [(gap, gap) for gap in gaps]
        else:
            assert self.quantiles is not None
            parts = list(pairwise(self.quantiles))
            for before, after in parts:
                if after < before:
                    said = [format_quantity(gap, "time") for gap in (after, before)]
                    raise problem(f"quantiles: {said[0]} comes after {said[1]}; sort them.")
        if not any(high for _, high in parts):
            raise problem(f"{self.path or 'quantiles'}: all gaps are 0; give a time above 0.")
        self._parts = tuple(parts)
        return self

    @cached_property
    def parts(self) -> Floats:
        """Shortest and longest gap of parts of equal weight, shape `(2, num_parts)` [s]."""
        return np.array(self._parts).T

    def mean_gap(self) -> float:
        return sum(low + high for low, high in self._parts) / 2 / len(self._parts)

    def gaps(self, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
        low, high = self.parts
        part, share = random.integers(len(low), size=shape), random.random(shape)
        found: Floats = low[part] + share * (high[part] - low[part])
        return found

    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw a part by its mean, and in it by length: the root of what is uniform in squares."""
        low, high = self.parts
        part = chosen(np.cumsum(low + high), random.random(num_units))
        share = random.random(num_units)
        found: Floats = np.sqrt(low[part] ** 2 + share * (high[part] ** 2 - low[part] ** 2))
        return found
