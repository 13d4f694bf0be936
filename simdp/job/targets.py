"""Training targets: epochs, samples, a loss, or the quality of a public benchmark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from math import ceil, inf, sqrt
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from simdp.arrays import Floats
from simdp.errors import unknown_name
from simdp.family import Family
from simdp.files import Catalogue
from simdp.spec import Float, Int, Spec, one_of, problem

QUANTILES = {"p5": 0.05, "p50": 0.5, "p90": 0.9, "p95": 0.95}


class SamplesNeeded(NamedTuple):
    """Samples that a job needs, which luck decides a part of.

    Single runs are drawn from a Student t distribution fitted to past runs, with one degree of
    freedom less than runs, ``mean + sd sqrt(1 + 1 / runs) t``: the prediction interval of a new run
    of a normal quantity. A run needs at least one step.
    """

    mean: float
    """Of single runs [samples]."""
    sd: float = 0.0
    """Of single runs [samples]."""
    runs: float = inf
    """How many of them mean and sd were found from; infinitely many where they are given."""

    def quantile(self, p: float) -> float:
        """Samples within which a share p of runs gets there."""
        if not self.sd:
            return self.mean
        return max(float(self.mean + self._scale * _student(p, self.runs - 1)), 0.0)

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        """Samples that single runs need, shape `(size,)`."""
        if not self.sd:
            return np.full(size, self.mean)
        drawn = random.standard_normal(size)
        if self.runs < inf:
            drawn /= np.sqrt(random.chisquare(self.runs - 1, size) / (self.runs - 1))
        return np.maximum(self.mean + self._scale * drawn, 0.0)

    def steps(self, global_batch: float) -> int:
        """Whole steps in which a mean run gets there."""
        return max(ceil(self.mean / global_batch - 1e-9), 1)

    def seconds(self, throughput: float) -> dict[str, float]:
        """Mean and quantiles of the time that it takes [s].

        Parameters
        ----------
        throughput : float
            Of all ranks [samples/s]; that steps differ in time is no part of the quantiles.
        """
        quantiles = {name: self.quantile(p) / throughput for name, p in QUANTILES.items()}
        return {"mean": self.mean / throughput, **quantiles}

    @property
    def _scale(self) -> float:
        return self.sd * sqrt(1 + 1 / self.runs)


def _student(p: float, freedom: float) -> float:
    """Quantile of Student's t; of the normal distribution where the freedom is infinite."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, p) if freedom < inf else ndtri(p))


class Target(Spec):
    """Target of a job."""

    kind: str

    @abstractmethod
    def need(self, global_batch: float, num_samples: int) -> SamplesNeeded | None:
        """Samples that it takes; None where only a run can tell.

        Parameters
        ----------
        global_batch : float
            Samples of all ranks in a step.
        num_samples : int
            In the data set; 0 without one.

        Raises
        ------
        ValueError
            As in `problem_with`.
        """

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        """Explain why it cannot be computed, or None."""
        return None

    def in_samples(self, tokens_per_sample: float | None) -> Target:
        """The same target, of tokens in samples; ``tokens_per_sample`` is None without tokens."""
        return self


TARGETS: Family[Target] = Family(
    "targets",
    Target,
    __name__,
    {
        "benchmark": "Benchmark",
        "epochs": "Epochs",
        "loss": "LossReached",
        "samples": "SamplesTarget",
        "tokens": "TokensTarget",
    },
)
AnyTarget = Annotated[Target, one_of("target", TARGETS, by_key=True)]


# Benchmark ----------------------------------------------------------------------------------------

BENCHMARKS = Catalogue(Path(__file__).parent / "benchmarks")


class BenchmarkTable(NamedTuple):
    """Samples to a benchmark's quality by global batch; arrays of shape `(num_batches,)`."""

    batch: Any
    """Global batch, mean and standard deviation of the samples that runs took, and how many
    runs."""
    mean: Any
    """Global batch, mean and standard deviation of the samples that runs took, and how many
    runs."""
    sd: Any
    """Global batch, mean and standard deviation of the samples that runs took, and how many
    runs."""
    runs: Any
    """Global batch, mean and standard deviation of the samples that runs took, and how many
    runs."""


@cache
def table_of(name: str) -> BenchmarkTable:
    """Read a benchmark's table."""
    entry = BENCHMARKS.read(name)
    figures = itemgetter("batch", "mean", "sd", "runs")
    columns = np.array([figures(point) for point in entry["points"]], float).T
    size = float(entry.get("num_samples", 1))  # means are epochs where it is given, else samples
    return BenchmarkTable(columns[0], columns[1] * size, columns[2] * size, columns[3])


def describe(name: str) -> str:
    """One line about a benchmark, for ``python -m simdp list``."""
    batches = table_of(name).batch
    return f"{BENCHMARKS.read(name)['quality']}, batches {batches[0]:,.0f} to {batches[-1]:,.0f}"


class Benchmark(Target):
    """The quality of a public benchmark: ``{benchmark: resnet}``.

    Samples are those of its reference implementation at this global batch, with each batch tuned
    separately, linear in between. Batches outside the range of known runs give no answer.

    References
    ----------
    MLPerf Training's reference convergence points: github.com/mlcommons/logging, rcp_checker.
    """

    kind: Literal["benchmark"] = "benchmark"
    benchmark: str
    """One of ``python -m simdp list benchmarks``."""

    @field_validator("benchmark")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in BENCHMARKS:
            raise problem(unknown_name("benchmark", name, BENCHMARKS.names()))
        return name

    def need(self, global_batch: float, num_samples: int) -> SamplesNeeded:
        wrong = self.problem_with(global_batch, num_samples)
        if wrong:
            raise ValueError(wrong)
        table = table_of(self.benchmark)
        mean, sd, runs = (float(np.interp(global_batch, table.batch, of)) for of in table[1:])
        return SamplesNeeded(mean, sd, runs)

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        batches = table_of(self.benchmark).batch
        if batches[0] <= global_batch <= batches[-1]:
            return None
        return (
            f"benchmark: {self.benchmark} has been run with batches of {batches[0]:.0f} to "
            f"{batches[-1]:.0f}, not of {global_batch:.6g}; use one between, or write "
            "{samples: ...} of your own."
        )


class Epochs(Target):
    """So many epochs: ``{epochs: 90}``."""

    kind: Literal["epochs"] = "epochs"
    epochs: Float = Field(gt=0, le=1e9)
    """How many."""
    num_samples: Int | None = Field(None, ge=1)
    """Of an epoch; None is as many as the data set has."""

    def need(self, global_batch: float, num_samples: int) -> SamplesNeeded:
        wrong = self.problem_with(global_batch, num_samples)
        if wrong:
            raise ValueError(wrong)
        return SamplesNeeded(self.epochs * (self.num_samples or num_samples))

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        if num_samples or self.num_samples:
            return None
        return (
            "epochs: there is no data set, so nobody knows how long an epoch is; add "
            "num_samples: 1281167, or write {samples: 1e9}."
        )


class LossReached(Target):
    """A training loss that the run goes on to, and no further: ``{loss: 0.1}``.

    Reached at the first step where the mean loss of the last ``window`` steps is at most this
    value. A run that has not reached it within ``workload.steps`` or ``workload.epochs`` reports
    so.
    """

    kind: Literal["loss"] = "loss"
    loss: Float
    """As ``loss`` in the result: the mean over all ranks of the optimizer's objective."""
    window: Int = Field(10, ge=1, le=10**6)
    """Number of steps to average over."""

    def need(self, global_batch: float, num_samples: int) -> None:
        return None

    def reached_after(self, losses: Sequence[float | None]) -> int | None:
        """Steps of a run until it is reached; None where it never is."""
        if len(losses) < self.window:
            return None
        values = np.array([np.nan if loss is None else loss for loss in losses], dtype=float)
        means = np.lib.stride_tricks.sliding_window_view(values, self.window).mean(axis=1)
        there = np.flatnonzero(means <= self.loss)
        return int(there[0]) + self.window if len(there) else None

    def is_reached(self, losses: Sequence[float | None]) -> bool:
        """Whether the last steps of a run have it."""
        last = losses[-self.window :]
        known = [loss for loss in last if loss is not None]
        return len(known) == self.window and float(np.mean(known)) <= self.loss


class SamplesTarget(Target):
    """So many samples of all ranks together: ``{samples: 1e9}``."""

    kind: Literal["samples"] = "samples"
    samples: Float = Field(ge=1, le=1e18)
    """How many."""

    def need(self, global_batch: float, num_samples: int) -> SamplesNeeded:
        return SamplesNeeded(self.samples)


class TokensTarget(Target):
    """So many tokens of all ranks together, without padding: ``{tokens: 100e9}``."""

    kind: Literal["tokens"] = "tokens"
    tokens: Float = Field(ge=1, le=1e18)
    """How many, of the model's first input."""

    def need(self, global_batch: float, num_samples: int) -> SamplesNeeded:
        raise ValueError(self.problem_with(global_batch, num_samples))

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        return "tokens: the model takes none; write {samples: 1e9} or {epochs: 90}."

    def in_samples(self, tokens_per_sample: float | None) -> Target:
        if tokens_per_sample is None:
            return self
        return SamplesTarget(samples=max(self.tokens / tokens_per_sample, 1.0))
