"""Named random streams: every consumer has its own, so a new one shifts nobody's draws."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the random stream that belongs to a name.

    Parameters
    ----------
    seed : int
        The scenario's seed, 0 or more.
    *name : str or int
        Who draws, for example ``"straggler", 0, step``.

    Returns
    -------
    numpy.random.Generator
        The same stream for the same seed and name, on any machine.
    """
    key = [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in name]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, len(key), *key])))
