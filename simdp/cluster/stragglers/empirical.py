"""Jitter as it was measured: each rank's compute time varies by a factor of given quantiles."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.errors import ScenarioError
from simdp.files import read_csv
from simdp.spec import Float, Spec, problem

COLUMNS = ("quantile", "factor")


class QuantilePoint(Spec):
    """A point of the distribution.

    Attributes
    ----------
    quantile : float
        Part of the steps that are no slower.
    factor : float
        What these take at most, in multiples of the device's time.
    """

    quantile: Float = Field(ge=0, le=1)
    factor: Float = Field(gt=0, le=1e6)


class Empirical(Straggler):
    """Factor drawn per rank and step from measured quantiles, on straight lines between them.

    Attributes
    ----------
    quantiles : list of QuantilePoint or None
        In rising order, from quantile 0, the smallest factor, to quantile 1, the largest.
    path : str or None
        The same as CSV with the columns ``quantile, factor``, relative to the scenario file; in
        place of ``quantiles``.
    """

    by_chance: ClassVar[bool] = True

    kind: Literal["empirical"] = "empirical"
    quantiles: Annotated[list[QuantilePoint], Field(min_length=2)] | None = None
    path: str | None = None

    _read: tuple[Floats, Floats] = PrivateAttr(default=(np.empty(0), np.empty(0)))

    @model_validator(mode="after")
    def _is_a_distribution(self, info: ValidationInfo) -> Empirical:
        if (self.path is None) == (self.quantiles is None):
            raise problem(
                "give either quantiles, [{quantile: 0, factor: 0.9}, ..., "
                "{quantile: 1, factor: 2}], or path, a CSV file with these columns."
            )
        base = Path((info.context or {}).get("base", ""))
        where = "quantiles" if self.path is None else str(base / self.path)
        try:
            pairs = self._pairs(base)
        except ScenarioError as error:
            raise problem(str(error)) from None
        wrong = _problem_with(pairs)
        if wrong:
            raise problem(f"{where}: {wrong}")
        at, factors = np.array(pairs).T
        self._read = at, factors
        return self

    def _pairs(self, base: Path) -> list[tuple[float, float]]:
        if self.path is None:
            return [(point.quantile, point.factor) for point in self.quantiles or ()]
        path, found = base / self.path, list[tuple[float, float]]()
        for row in read_csv(path, COLUMNS):
            try:
                found.append((float(row.name), row.numbers["factor"]))
            except ValueError:
                raise ScenarioError(
                    [f"{path}:{row.line}: quantile {row.name!r} is no number; give 0 ... 1."]
                ) from None
        return found

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return rounded(np.interp(random.random(world_size), *self._read))


def _problem_with(pairs: list[tuple[float, float]]) -> str | None:
    """Say why points are no distribution of factors, or None."""
    first, last = pairs[0][0], pairs[-1][0]
    if first != 0 or last != 1:
        return (
            f"goes from quantile {first:g} to {last:g}; begin with 0, the smallest factor, and "
            "end with 1, the largest."
        )
    for (before, low), (at, high) in pairwise(pairs):
        if not at > before or high < low:
            return (
                f"quantile {at:g} with factor {high:g} comes after quantile {before:g} with "
                f"factor {low:g}; put them in rising order."
            )
    if pairs[0][1] <= 0:
        return f"factor {pairs[0][1]:g} is out of range; it must be > 0."
    return None
