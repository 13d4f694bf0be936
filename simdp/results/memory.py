"""Memory: what ranks keep, part by part, and when they take it and give it back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
those of all ranks in one place, with their gradients; ``inputs`` is the micro-batch; ``buffers``
are tensors of the model that are not learned; ``temporary`` is what a computation needs beside all
this.
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
