"""Failures drawn from a rate or a distribution of lifetimes."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from math import ceil, gamma
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from simdp.arrays import Floats, Ints
from simdp.cluster.failures import Effect, FailureEvent, Failures
from simdp.cluster.stragglers import rounded
from simdp.errors import ScenarioError, shown
from simdp.files import read_text
from simdp.spec import Bool, Float, Int, Percent, PositiveSeconds, Seconds, form_of, problem
from simdp.tables import TableLine, parse_cell, parse_lines
from simdp.units import NUMBER_PATTERN, format_percent, format_quantity

EXAMPLE = 'write for example "6.5 per 1000 node-days"'

_WRITTEN = re.compile(
    rf"\s*(?P<count>{NUMBER_PATTERN})\s+per\s+(?P<number>{NUMBER_PATTERN})?\s*"
    r"(?:(?P<unit>[a-z]+)-)?(?P<time>[a-z]+)\s*",
    re.ASCII,
)


class FailureRate(NamedTuple):
    """Failure rate of one unit."""

    text: str  # as written
    per_second: float  # failures of one unit [1/s]
    unit: str | None  # unit of the rate, if written: ``"node"``


def parse_rate(given: object) -> FailureRate:
    """Parse a rate, a number of failures per time; reject other numbers."""
    if isinstance(given, FailureRate):
        return given
    match = _WRITTEN.fullmatch(given) if isinstance(given, str) and len(given) <= 100 else None
    if match is None:
        raise problem(f"{shown(given)} is not a number of failures per time; {EXAMPLE}.")
    text, number, time, unit = match.group("count", "number", "time", "unit")
    count = float(text)
    seconds = form_of(PositiveSeconds).validate_python(f"{number or 1} {time}")
    if not 0 < count < float("inf"):
        raise problem(f"{given} is out of range; it must be > 0 and finite.")
    return FailureRate(match[0].strip(), count / seconds, unit)


Rate = Annotated[
    FailureRate,
    PlainValidator(parse_rate),
    PlainSerializer(lambda rate: rate.text, return_type=str),
    WithJsonSchema(
        {
            "title": "failures per time",
            "type": "string",
            "pattern": rf"^\s*{NUMBER_PATTERN}\s+per\s+({NUMBER_PATTERN})?\s*([a-z]+-)?[a-z]+\s*$",
        }
    ),
]


Per = Literal["device", "node", "switch", "cluster", "job"]
BLOCK = 64
"""Events drawn at once; an hour to a week of a large job."""


def _no_more_than_all(share: float) -> float:
    if share > 1:
        raise problem(f"{format_percent(share)} of all failures is too much; write 100 % or less.")
    return share


class Hazard(Failures):
    """Independent failures of units with equal distributions."""

    per: Per = "node"
    """Unit of the times between failures: a ``device`` or a ``node``; its failure takes its node
    down; a ``switch``, which takes down all of its nodes; the ``cluster``, any one node of which
    fails; or the ``job``, all processes of which die while no node is lost."""
    nodes_per_switch: Int | None = Field(None, ge=1, le=2**20)
    """Consecutive nodes behind one switch; only with ``per: switch``."""
    spread: Float = Field(0.0, ge=0, le=10)
    """Coefficient of variation of the units' rates, gamma-distributed, drawn for every run, with a
    constant mean. 0: equal units; 2: the worst 7 % of them have half of the failures. For a
    cluster, the rates are those of its nodes."""
    hang: Annotated[Percent, AfterValidator(_no_more_than_all)] = 0.0
    """The share of failures that are silent."""
    repair: Seconds = 0.0
    """Time until the affected nodes can be used again [s]. 0: processes start again on them."""

    @model_validator(mode="after")
    def _suits_its_units(self) -> Hazard:
        if self.per == "switch" and self.nodes_per_switch is None:
            raise problem("per: switch needs the number of its nodes; add nodes_per_switch: 16.")
        if self.per != "switch" and self.nodes_per_switch is not None:
            raise problem(
                f"nodes_per_switch is not used with per: {self.per}; leave it out, or write "
                "per: switch."
            )
        if self.per == "job" and self.repair:
            raise problem(
                "repair is not used with per: job, which loses no node; leave it out, or write "
                "per: cluster."
            )
        if self.per == "job" and self.spread:
            raise problem("spread is not used with per: job, which is a single unit; leave it out.")
        return self

    def called(self) -> str:
        return self.cause or f"{'node' if self.per == 'cluster' else self.per} failure"

    def problem_with(self, num_nodes: int) -> str | None:
        if self.per == "switch" and num_nodes == 1:
            others = " or ".join(word for word in get_args(Per) if word in ("device", "node"))
            return f"per: switch needs more than one node; use {others}."
        return None

    def job_rate(self, num_nodes: int, devices_per_node: int) -> float | None:
        units = 1 if self.per == "cluster" else self.num_units(num_nodes, devices_per_node)
        return units / self.mean_gap()

    def num_units(self, num_nodes: int, devices_per_node: int) -> int:
        """Return the number of units with separate rates; of a cluster, its nodes."""
        if self.per == "switch":
            assert self.nodes_per_switch is not None
            return -(-num_nodes // self.nodes_per_switch)
        return {"device": num_nodes * devices_per_node, "job": 1}.get(self.per, num_nodes)

    @abstractmethod
    def mean_gap(self) -> float:
        """Return the mean time between failures of a unit [s]."""

    @abstractmethod
    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        """Draw the failures of units, block by block.

        Parameters
        ----------
        rates : ndarray, shape `(num_units,)`
            Factor of each unit's failure rate, relative to ``1 / mean_gap``, above 0.
        random : numpy.random.Generator
            The run's.

        Returns
        -------
        iterator of (ndarray, ndarray), each of shape `(num_events,)`
            Times in ascending order [s], and the failing units.
        """

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        rates = self._rates(self.num_units(num_nodes, devices_per_node), random)
        alone, summed = np.ones(1), np.cumsum(rates)
        effects: tuple[Effect, Effect] = ("fail", "hang")
        for times, units in self.arrivals(alone if self.per == "cluster" else rates, random):
            shares, silent = random.random((2, len(times)))
            if self.per == "cluster":
                units = chosen(summed, shares)
            yield from map(
                FailureEvent,
                times.tolist(),
                [effects[hangs] for hangs in (silent < self.hang).tolist()],
                repeat(self.called()),
                self._nodes(units, num_nodes, devices_per_node),
                repeat(self.repair),
            )

    def _rates(self, num_units: int, random: np.random.Generator) -> Floats:
        """Return each unit's factor on its rate, of mean 1, shape `(num_units,)`."""
        if not self.spread:
            return np.ones(num_units)
        variance = self.spread**2
        drawn = rounded(random.standard_gamma(1 / variance, num_units))
        return np.maximum(drawn * variance, 1e-30)

    def _nodes(
        self, units: Ints, num_nodes: int, devices_per_node: int
    ) -> Iterable[tuple[int, ...]]:
        """Return the nodes affected by failures of units."""
        if self.per == "job":
            return repeat(())
        if self.per == "switch":
            size = self.nodes_per_switch or 1
            starts = (units * size).tolist()
            return (tuple(range(start, min(start + size, num_nodes))) for start in starts)
        return zip((units // devices_per_node if self.per == "device" else units).tolist())


def chosen(summed: Floats, shares: Floats) -> Ints:
    """Choose units by weight, given cumulative weights and uniform ``shares`` in [0, 1)."""
    places: Ints = np.searchsorted(summed, shares * summed[-1], side="right")
    return np.minimum(places, len(summed) - 1)


class Exponential(Hazard):
    """``{kind: exponential, mtbf: 1000 h}``: a constant rate, a Poisson process.

    All units together fail at the sum of their rates, and each in proportion to its rate.
    """

    kind: Literal["exponential"] = "exponential"
    mtbf: PositiveSeconds | None = None
    """Mean time between failures of one unit [s]."""
    rate: Rate | None = None
    """Instead of it, the failure rate of one unit, as published: ``6.5 per 1000 node-days``."""

    @model_validator(mode="after")
    def _has_one_rate(self) -> Exponential:
        if (self.mtbf is None) == (self.rate is None):
            raise problem(f"give either mtbf, a time, or rate; {EXAMPLE}.")
        if self.rate is not None and self.rate.unit not in (None, self.per):
            raise problem(
                f"rate: {self.rate.text} is per {self.rate.unit}, and per is {self.per}; make "
                "them agree."
            )
        return self

    def mean_gap(self) -> float:
        if self.rate is not None:
            return 1 / self.rate.per_second
        assert self.mtbf is not None
        return self.mtbf

    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        summed = np.cumsum(rates)
        gap, now = self.mean_gap() / float(summed[-1]), 0.0
        while True:
            gaps = rounded(random.standard_exponential(BLOCK)) * gap
            gaps[0] += now
            times = np.cumsum(gaps)
            now = float(times[-1])
            yield times, chosen(summed, random.random(BLOCK))


class Renewal(Hazard):
    """Failures with gaps of one distribution."""

    new: Bool = False
    """Whether units are new when the job begins. By default the job begins between two failures of
    each, and the failure rate is constant from its first hour on."""

    def job_rate(self, num_nodes: int, devices_per_node: int) -> float | None:
        return None if self.new else super().job_rate(num_nodes, devices_per_node)

    @abstractmethod
    def gaps(self, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
        """Draw times between two failures of a unit [s]."""

    @abstractmethod
    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw the gaps that contain an instant, shape `(num_units,)` [s].

        Each gap has a probability proportional to its length.
        """

    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        """Draw the failures of units, window by window, each of `BLOCK` events on average.

        The residual gap at an instant is uniform in it (D. R. Cox, "Renewal Theory", 1962).
        """
        num_units = len(rates)
        width = BLOCK * self.mean_gap() / float(np.cumsum(rates)[-1])
        ahead = max(2, ceil(1.25 * BLOCK / num_units))
        if self.new:
            first = self.gaps((num_units,), random)
        else:
            first = self.lives(num_units, random) * random.random(num_units)
        upcoming, number = first / rates, 1
        while True:
            times, units = list[Floats](), list[Ints]()
            active = np.flatnonzero(upcoming < number * width)
            while active.size:
                drawn = self.gaps((len(active), ahead), random) / rates[active, None]
                grid = np.cumsum(np.column_stack([upcoming[active], drawn]), axis=1)
                # Those of this window; the gap after the last one gives the unit's next failure.
                num_within = np.minimum((grid < number * width).sum(axis=1), ahead)
                times.append(grid[np.arange(ahead + 1) < num_within[:, None]])
                units.append(np.repeat(active, num_within))
                upcoming[active] = grid[np.arange(len(active)), num_within]
                active = active[upcoming[active] < number * width]
            if times:
                instants = np.concatenate(times)
                order = np.argsort(instants, kind="stable")
                yield instants[order], np.concatenate(units)[order]
            number += 1


class Weibull(Renewal):
    """``{kind: weibull, mtbf: 1000 h, shape: 0.7}``: gaps ``scale E^(1 / shape)``.

    E is exponential with mean 1. With a shape below 1 a failure makes the next one of its unit more
    likely soon, as ineffective repairs do: 0.7 to 0.8 is usual for nodes.

    References
    ----------
    Schroeder and Gibson, "A large-scale study of failures in high-performance computing systems",
    DSN 2006, section 5.3.
    """

    kind: Literal["weibull"] = "weibull"
    mtbf: PositiveSeconds | None = None
    """Mean time between failures of one unit, ``scale Gamma(1 + 1 / shape)`` [s]."""
    scale: PositiveSeconds | None = None
    """Instead of it, the time by which 63 % of gaps have ended [s]."""
    shape: Float = Field(ge=0.1, le=100)
    """1 is `exponential`."""

    @model_validator(mode="after")
    def _has_one_length(self) -> Weibull:
        if (self.mtbf is None) == (self.scale is None):
            raise problem("give either mtbf, the mean time between failures, or scale.")
        return self

    def mean_gap(self) -> float:
        return self.mtbf if self.mtbf is not None else self._length() * self._mean()

    def _mean(self) -> float:
        """Return the mean of gaps of scale 1."""
        return float(rounded(np.array(gamma(1 + 1 / self.shape))))

    def _length(self) -> float:
        """Return the scale [s]."""
        if self.scale is not None:
            return self.scale
        assert self.mtbf is not None
        return self.mtbf / self._mean()

    def gaps(self, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
        return self._length() * rounded(random.standard_exponential(shape) ** (1 / self.shape))

    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw ``scale G^(1 / shape)``, gaps weighted by their length; G is gamma."""
        drawn = random.standard_gamma(1 + 1 / self.shape, num_units)
        return self._length() * rounded(drawn ** (1 / self.shape))


# Tables -------------------------------------------------------------------------------------------


def lines_of(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[TableLine]:
    """Read a table with `parse_lines`; raise its problems as validation errors."""
    try:
        return parse_lines(read_text(path, "a table is CSV"), str(path), required, optional)
    except ScenarioError as error:
        raise problem(str(error)) from None


def numbers(path: Path, lines: Sequence[TableLine], column: str) -> list[float]:
    """Read a column of numbers >= 0."""
    return [number(path, line, column) for line in lines]


def number(path: Path, line: TableLine, column: str) -> float:
    """Read a number >= 0."""
    try:
        return parse_cell(column, line.cells[column])
    except ValueError as error:
        raise at(path, line, str(error)) from None


def at(path: Path, line: TableLine, message: str) -> PydanticCustomError:
    """Return the problem of a line of a file."""
    return problem(f"{path}:{line.number}: {message}")


class EmpiricalFailures(Renewal):
    """``{kind: empirical, quantiles: [45 min, 75 min]}``: gaps between failures as observed."""

    kind: Literal["empirical"] = "empirical"
    path: str | None = None
    """A CSV file of gaps, relative to the scenario, with the column ``gap_s``: all are equally
    likely, in any order."""
    quantiles: list[Seconds] | None = Field(None, min_length=2)
    """Instead of a file, at equal steps from the shortest gap to the longest, with linear
    interpolation [s]; two are a uniform distribution."""

    _parts: tuple[tuple[float, float], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> EmpiricalFailures:
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
                    later, earlier = (format_quantity(gap, "time") for gap in (after, before))
                    raise problem(f"quantiles: {later} comes after {earlier}; sort them.")
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
        gaps: Floats = low[part] + share * (high[part] - low[part])
        return gaps

    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw a component by its mean, then its length: the square root of a uniform number."""
        low, high = self.parts
        part = chosen(np.cumsum(low + high), random.random(num_units))
        share = random.random(num_units)
        lives: Floats = np.sqrt(low[part] ** 2 + share * (high[part] ** 2 - low[part] ** 2))
        return lives
