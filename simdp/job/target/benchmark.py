"""The quality that a public benchmark asks for, by what its reference took at each batch size."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import field_validator

from simdp.errors import unknown_name
from simdp.files import Catalogue
from simdp.job.target.base import Need, Target
from simdp.spec import problem

BENCHMARKS = Catalogue(Path(__file__).parent / "benchmarks")


class Table(NamedTuple):
    """Samples to a benchmark's quality by global batch; arrays of shape `(num_batches,)`.

    Attributes
    ----------
    batch, mean, sd, runs : ndarray
        Global batch, mean and standard deviation of the samples that runs took, and how many runs.
    """

    batch: Any
    mean: Any
    sd: Any
    runs: Any


@cache
def table_of(name: str) -> Table:
    """Read a benchmark's table."""
    entry = BENCHMARKS.read(name)
    each = np.array([[p["batch"], p["mean"], p["sd"], p["runs"]] for p in entry["points"]], float).T
    size = float(entry.get("num_samples", 1))  # means are epochs where it is given, else samples
    return Table(each[0], each[1] * size, each[2] * size, each[3])


def describe(name: str) -> str:
    """One line about a benchmark, for ``python -m simdp list``."""
    batches = table_of(name).batch
    return f"{BENCHMARKS.read(name)['quality']}, batches {batches[0]:,.0f} to {batches[-1]:,.0f}"


class Benchmark(Target):
    """The quality of a public benchmark: ``{benchmark: resnet}``.

    Samples are those of its reference implementation at this global batch, each batch tuned by
    itself, linear in between. Beyond the batches that somebody has run nothing is said.

    Attributes
    ----------
    benchmark : str
        One of ``python -m simdp list benchmarks``.

    References
    ----------
    MLPerf Training's reference convergence points: github.com/mlcommons/logging, rcp_checker.
    """

    kind: Literal["benchmark"] = "benchmark"
    benchmark: str

    @field_validator("benchmark")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in BENCHMARKS:
            raise problem(unknown_name("benchmark", name, BENCHMARKS.names()))
        return name

    def need(self, global_batch: float, num_samples: int) -> Need:
        wrong = self.problem_with(global_batch, num_samples)
        if wrong:
            raise ValueError(wrong)
        table = table_of(self.benchmark)
        mean, sd, runs = (float(np.interp(global_batch, table.batch, of)) for of in table[1:])
        return Need(mean, sd, runs)

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        batches = table_of(self.benchmark).batch
        if batches[0] <= global_batch <= batches[-1]:
            return None
        return (
            f"benchmark: {self.benchmark} has been run with batches of {batches[0]:.0f} to "
            f"{batches[-1]:.0f}, not of {global_batch:.6g}; use one between, or write "
            "{samples: ...} of your own."
        )
