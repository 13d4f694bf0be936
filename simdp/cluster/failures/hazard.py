"""Hazard: failures of many like units, at random, some units more often than others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from simdp.arrays import Floats, Ints
from simdp.cluster.failures.base import Effect, Event, Failures
from simdp.cluster.stragglers.base import rounded
from simdp.percent import Percent
from simdp.spec import Float, Int, Seconds, problem
from simdp.units import format_percent

Per = Literal["device", "node", "switch", "cluster", "job"]
BLOCK = 64
"""Events that are drawn at once; an hour to a week of a large job."""


def _no_more_than_all(share: float) -> float:
    if share > 1:
        raise problem(f"{format_percent(share)} of all failures is too much; write 100 % or less.")
    return share


class Hazard(Failures):
    """Failures of like units, each at a rate of its own, independent of the others.

    Attributes
    ----------
    per : str
        What the times between failures are those of: a ``device`` or a ``node``, whose failure
        hits its node; a ``switch``, which hits all of its nodes; the ``cluster``, any one node of
        which is hit; or the ``job``, all processes of which die while no node is lost.
    nodes_per_switch : int or None
        Consecutive nodes behind one switch; given with ``per: switch`` alone.
    spread : float
        Coefficient of variation of the units' rates, which are gamma-distributed and drawn anew
        for every run; their mean stays. 0: all units are alike; 2: the worst 7 % of them have half
        of the failures. Of a cluster, it is the nodes that fail unequally often.
    hang : float
        The share of failures that are silent.
    repair : float
        Until the nodes that were hit can be used again [s]. 0: processes start again on them.
    """

    per: Per = "node"
    nodes_per_switch: Int | None = Field(None, ge=1, le=2**20)
    spread: Float = Field(0.0, ge=0, le=10)
    hang: Annotated[Percent, AfterValidator(_no_more_than_all)] = 0.0
    repair: Seconds = 0.0

    @model_validator(mode="after")
    def _suits_its_units(self) -> Hazard:
        if self.per == "switch" and self.nodes_per_switch is None:
            raise problem("per: switch needs to know its nodes; add nodes_per_switch: 16.")
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
        """Units that fail unequally often; of a cluster, its nodes."""
        if self.per == "switch":
            assert self.nodes_per_switch is not None
            return -(-num_nodes // self.nodes_per_switch)
        return {"device": num_nodes * devices_per_node, "job": 1}.get(self.per, num_nodes)

    @abstractmethod
    def mean_gap(self) -> float:
        """Mean time between failures of a unit [s]."""

    @abstractmethod
    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        """Draw the failures of units, block by block.

        Parameters
        ----------
        rates : ndarray, shape `(num_units,)`
            By which factor each fails more often than ``mean_gap`` says, above 0.
        random : numpy.random.Generator
            The run's.

        Returns
        -------
        iterator of (ndarray, ndarray), each of shape `(num_events,)`
            Times in rising order [s], and the units that fail.
        """

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[Event]:
        rates = self._rates(self.num_units(num_nodes, devices_per_node), random)
        alone, summed = np.ones(1), np.cumsum(rates)
        effects: tuple[Effect, Effect] = ("fail", "hang")
        for times, units in self.arrivals(alone if self.per == "cluster" else rates, random):
            shares, silent = random.random((2, len(times)))
            if self.per == "cluster":
                units = chosen(summed, shares)
            yield from map(
                Event,
                times.tolist(),
                [effects[hangs] for hangs in (silent < self.hang).tolist()],
                repeat(self.called()),
                self._nodes(units, num_nodes, devices_per_node),
                repeat(self.repair),
            )

    def _rates(self, num_units: int, random: np.random.Generator) -> Floats:
        """Each unit's factor on its rate, of mean 1, shape `(num_units,)`."""
        if not self.spread:
            return np.ones(num_units)
        variance = self.spread**2
        drawn = rounded(random.standard_gamma(1 / variance, num_units))
        return np.maximum(drawn * variance, 1e-30)

    def _nodes(
        self, units: Ints, num_nodes: int, devices_per_node: int
    ) -> Iterable[tuple[int, ...]]:
        """The nodes that each of some units hits."""
        if self.per == "job":
            return repeat(())
        if self.per == "switch":
            size = self.nodes_per_switch or 1
            starts = (units * size).tolist()
            return (tuple(range(start, min(start + size, num_nodes))) for start in starts)
        return zip((units // devices_per_node if self.per == "device" else units).tolist())


def chosen(summed: Floats, shares: Floats) -> Ints:
    """Choose units by weight.

    Parameters
    ----------
    summed : ndarray, shape `(num_units,)`
        Weight of each unit and all before it.
    shares : ndarray, shape `(num_choices,)`
        In [0, 1), uniform.

    Returns
    -------
    ndarray, shape `(num_choices,)`
        Units.
    """
    found: Ints = np.searchsorted(summed, shares * summed[-1], side="right")
    return np.minimum(found, len(summed) - 1)
