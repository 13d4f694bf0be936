"""Named random streams: each consumer has its own, so that a new one changes no draws."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Floats, Ints


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the random stream that belongs to a name.

    Parameters
    ----------
    seed : int
        The scenario's seed, 0 or more.
    *name : str or int
        Names of the stream, for example ``"straggler", 0, step``.

    Returns
    -------
    numpy.random.Generator
        The same stream for the same seed and name, on any machine.
    """
    key = [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in name]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, len(key), *key])))


def uniform_at(
    seed: int, name: tuple[str | int, ...], members: Ints, shape: tuple[int, ...]
) -> Floats:
    """Uniform numbers in [0, 1) that depend only on their place, not on other draws.

    A counter-based generator: each number is a hash of the stream's key, the member and the
    place, so that cutting or padding an axis changes none of the numbers that stay.

    Parameters
    ----------
    seed, name
        As in `stream`.
    members : ndarray, shape `(num_members,)`
        For example the samples of a batch.
    shape : tuple of int
        Key of each member's draws.

    Returns
    -------
    ndarray, shape `(num_members, *shape)`

    References
    ----------
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the
    finaliser of SplitMix64.
    """
    key = stream(seed, *name).integers(2**64, dtype=np.uint64)
    with np.errstate(over="ignore"):  # whole numbers modulo 2^64
        state = _mixed(members.astype(np.uint64) * _GOLDEN + key)
        for size in shape:
            state = _mixed(state[..., None] + np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
