"""Padding: what fills samples of different lengths up to one array, and where it begins."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array, Ints


def reach(counts: Array) -> Ints:
    """Length up to the last place that counts, 1 at least; `(num_samples, length)` in."""
    from_the_end = np.argmax(counts[:, ::-1], axis=1)
    return np.where(counts.any(axis=1), counts.shape[1] - from_the_end, 1)


def padded(tokens: Ints, lengths: Ints, filler: int, width: int) -> Ints:
    """Put a filler behind each sample's length, and behind them all up to a width.

    Parameters
    ----------
    tokens : ndarray, shape `(num_samples, longest)`
        Changed in place.
    lengths : ndarray, shape `(num_samples,)`
        How much of each sample stays.
    filler, width : int
        What is put, and the number of columns that come out.
    """
    tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = filler
    beyond = np.full((len(tokens), width - tokens.shape[1]), filler)
    return np.concatenate([tokens, beyond], axis=1)
