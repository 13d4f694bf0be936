"""Memory: what ranks keep, part by part, when they take it and when they give it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints

PARTS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buckets",
    "gathered",
    "activations",
    "outputs",
    "inputs",
    "buffers",
    "temporary",
)
"""What memory is taken for.

``optimizer_state`` holds master weights too; ``buckets`` are flat buffers of gradients; what is
``gathered`` are parameters of other ranks, for a while, or copies of a root's; ``outputs`` are
what the model makes, with gradients, also where those of all ranks are in one place; ``inputs`` is
the micro-batch; ``buffers`` are tensors of the model that are not learned; ``temporary`` is what a
computation needs beside all this.
"""

NAMED = ("parameters", "gradients", "optimizer_state", "buckets", "activations")
"""Parts with a name of their own in ``memory_bytes`` of result.json; the rest is ``other``."""


class Holding(NamedTuple):
    """Ranks take memory, or give it back.

    Attributes
    ----------
    ranks : ndarray, int64
        Who.
    step : int
        In which step; -1 is the setup.
    part : int
        Place in `PARTS`.
    at : ndarray, float64
        When [s].
    nbytes : float or ndarray, float64
        How much each takes; negative gives back.
    """

    ranks: Ints
    step: int
    part: int
    at: Floats
    nbytes: float | Floats


def summed(parts: Floats) -> dict[str, int]:
    """``memory_bytes`` of result.json, from the bytes of each of `PARTS`."""
    found = {name: int(parts[PARTS.index(name)]) for name in NAMED}
    rest = [i for i, name in enumerate(PARTS) if name not in NAMED]
    return {**found, "other": int(parts[rest].sum())}


class Usage(NamedTuple):
    """What one or several ranks keep together, after each time that one of them takes or gives.

    Attributes
    ----------
    step : ndarray, shape `(num_changes,)`, int64
        -1 is the setup.
    at : ndarray, shape `(num_changes,)`, float64
        Instants, rising [s].
    kept : ndarray, shape `(num_changes, len(PARTS))`, float64
        What is there from then on, part by part [bytes].
    """

    step: Ints
    at: Floats
    kept: Floats

    @property
    def total(self) -> Floats:
        """What is there in all, shape `(num_changes,)` [bytes]."""
        found: Floats = self.kept.sum(axis=1)
        return found

    def peak(self) -> int:
        """Place of the largest total; of equal ones in the last step that has one, the first."""
        total = self.total
        highest = np.flatnonzero(total >= total.max() * (1 - ROUNDING))
        return int(highest[self.step[highest] == self.step[highest].max()][0])


ROUNDING = 1e-12
"""Sums of the same sizes in another order differ by no more than this part."""


def usage(holdings: Sequence[Holding], ranks: Sequence[int]) -> Usage:
    """Add up what some ranks took and gave back, change by change.

    Parameters
    ----------
    holdings : sequence of Holding
        In the order of the script on each rank.
    ranks : sequence of int
        Those that share a device, or one alone.

    Returns
    -------
    Usage
        Without changes where nothing is known of the ranks.
    """
    asked = np.array(ranks, dtype=np.int64)
    rows: list[tuple[int, float, int, float]] = []
    known: dict[int, list[int]] = {}  # by the array of ranks, which many holdings share
    for held in holdings:
        key = id(held.ranks)
        if key not in known:
            known[key] = np.flatnonzero(np.isin(held.ranks, asked)).tolist()
        for place in known[key]:
            nbytes = held.nbytes[place] if isinstance(held.nbytes, np.ndarray) else held.nbytes
            rows.append((held.step, float(held.at[place]), held.part, float(nbytes)))
    rows.sort(key=lambda row: row[1])  # stable: what one rank did at an instant stays in order
    kept = np.zeros((len(rows), len(PARTS)))
    kept[range(len(rows)), [row[2] for row in rows]] = [row[3] for row in rows]
    return Usage(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows]),
        kept.cumsum(axis=0),
    )
