"""Renewal: failures of units that are as new after each one, with gaps of any distribution."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from math import ceil

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster.failures.hazard import BLOCK, Hazard
from simdp.spec import Bool


class Renewal(Hazard):
    """Failures with gaps of one distribution, as many gaps as a unit has failures.

    Attributes
    ----------
    new : bool
        Whether units are new when the job begins. They are not by default: the job finds them
        somewhere between two failures, and all fail as often in its first hour as later.
    """

    new: Bool = False

    def job_rate(self, num_nodes: int, devices_per_node: int) -> float | None:
        return None if self.new else super().job_rate(num_nodes, devices_per_node)

    @abstractmethod
    def gaps(self, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
        """Draw times between two failures of a unit [s]."""

    @abstractmethod
    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw the gaps in which an instant falls, shape `(num_units,)` [s].

        Long ones hold more instants, so that each counts in proportion to its length.
        """

    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        """Draw the failures of units, window by window, each of `BLOCK` events on average.

        What is left of a gap at an instant is uniform in it (D. R. Cox, "Renewal Theory", 1962).
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
                # Those of this window; what follows the last of them is the next of its unit.
                num_within = np.minimum((grid < number * width).sum(axis=1), ahead)
                within = np.arange(ahead + 1) < num_within[:, None]
                times.append(grid[within])
                units.append(np.repeat(active, num_within))
                upcoming[active] = grid[np.arange(len(active)), num_within]
                active = active[upcoming[active] < number * width]
            if times:
                found = np.concatenate(times)
                order = np.argsort(found, kind="stable")
                yield found[order], np.concatenate(units)[order]
            number += 1
