"""Lengths as they were counted: quantiles, or a table of how many samples have each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Floats, Ints
from simdp.errors import ScenarioError
from simdp.files import read_csv
from simdp.spec import Float, Int, Spec, problem
from simdp.workload.datasets.lengths.base import LONGEST, Lengths, Tokens


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


class Empirical(Lengths):
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
