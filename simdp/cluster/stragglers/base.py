"""Straggler: why a device takes longer than its figures say."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.spec import Spec


class Straggler(Spec):
    """A cause of slower compute, or of slower links. A member overrides the effects that it has.

    Every effect is a pure function of the step, the instant and the rank, so that a run gives the
    same times however its ranks are played.
    """

    kind: str

    by_chance: ClassVar[bool] = False
    """Whether steps differ by what is drawn for them."""

    by_factors: ClassVar[bool] = True
    """Whether `lasting` and `slowdown` tell all that it does."""

    def on_rank(self) -> int | None:
        """Return the one rank concerned, or None when it is no single one."""
        return None

    def on_node(self) -> int | None:
        """Return the one node concerned, or None when it is no single one."""
        return None

    def comes_and_goes(self) -> bool:
        """Whether some steps are spared by design, so that a few do not stand for all."""
        return False

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        """Factor on the compute time of each rank in every step.

        Parameters
        ----------
        nodes : ndarray, shape `(world_size,)`, int64
            The node of each rank.
        random : numpy.random.Generator
            The stream that belongs to this straggler, whatever the step.

        Returns
        -------
        ndarray, shape `(world_size,)`
            Each above 0; 1 where nothing happens.
        """
        return np.ones(len(nodes))

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        """Factor on the compute time of each rank in a step.

        Parameters
        ----------
        step : int
            Counted from 0.
        world_size : int
            Number of ranks.
        random : numpy.random.Generator
            The stream that belongs to this straggler and step.

        Returns
        -------
        ndarray, shape `(world_size,)`
            Each above 0; 1 where nothing happens.
        """
        return np.ones(world_size)

    def lost(self, step: int, world_size: int) -> Floats:
        """Time lost once in a step, shape `(world_size,)` [s]."""
        return np.zeros(world_size)


def rounded(factors: Floats) -> Floats:
    """Round to 40 bits.

    The last bits of an exponential differ from one processor to another while a trace must not.
    """
    mantissa, exponent = np.frexp(factors)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)
