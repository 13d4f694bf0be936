"""Plan: all that the runs of a job need to know, in plain figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simdp.cluster.failures import Failures
from simdp.engine.job.length import Length
from simdp.engine.job.training import Pace, Saving
from simdp.job.recovery import Recovery
from simdp.results.money import Rates

NO_RATES = Rates()


@dataclass(frozen=True)
class Plan:
    """A job.

    Attributes
    ----------
    length : Length
        How many steps it takes.
    savings : tuple of Saving
        Kinds of checkpoints, the most durable one last; none where nothing is kept.
    paces : mapping of int to Pace
        By the number of nodes; with another number it goes as with the next smaller one.
    num_nodes, devices_per_node : int
        Of the cluster, without spares.
    recovery : Recovery
        What is done about failures.
    failures : tuple of Failures
        What fails.
    seed : int
        The scenario's.
    heal : float
        How long a replica group copies the state from a peer [s].
    rates : Rates
        What the cluster costs and draws.
    busy, waiting : float
        Shares of a step in which devices compute, and wait in collectives.
    """

    length: Length
    savings: tuple[Saving, ...]
    paces: Mapping[int, Pace]
    num_nodes: int
    devices_per_node: int
    recovery: Recovery
    failures: tuple[Failures, ...]
    seed: int
    heal: float = 0.0
    rates: Rates = NO_RATES
    busy: float = 1.0
    waiting: float = 0.0

    @property
    def pace(self) -> Pace:
        """With all nodes."""
        return self.paces[self.num_nodes]
