"""The order in which an epoch goes through the data: from a file, drawn, or grouped by length."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simdp.arrays import Ints
from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.rng import stream
from simdp.spec import Spec

MAX_MEGABATCH = 50
MIN_MEGABATCHES = 4
"""How many steps' samples are sorted by length together, and of how many such groups an epoch has
at least, where it is long enough (transformers: LengthGroupedSampler)."""


class Permutation(Spec):
    """An epoch's order from an npz file.

    Attributes
    ----------
    path : str
        A file with one array: shape `(num_samples,)` for every epoch the same, or
        `(num_epochs, num_samples)`, a row per epoch.
    """

    path: str


def epoch_order(
    shuffle: bool | Permutation, num_samples: int, epoch: int, seed: int, base: Path
) -> Ints:
    """Order of an epoch's samples, shape `(num_samples,)`."""
    if isinstance(shuffle, Permutation):
        return read_permutation(base / shuffle.path, num_samples, epoch)
    if shuffle:
        return stream(seed, "shuffle", epoch).permutation(num_samples)
    return np.arange(num_samples)


def grouped_by_length(order: Ints, lengths: Ints, samples_per_step: int) -> Ints:
    """Bring samples of similar length together, so that a step's ranks have equal work.

    The order is cut into megabatches of up to 50 steps, fewer where an epoch would have less than
    four of them, and each is sorted from long to short. Samples of equal length keep their order.

    Parameters
    ----------
    order : ndarray, shape `(num_samples,)`
        The epoch's order.
    lengths : ndarray, shape `(num_samples,)`
        Of every sample.
    samples_per_step : int
        Of all ranks.

    References
    ----------
    The rule of Hugging Face's ``group_by_length``: transformers, trainer_pt_utils.py,
    get_length_grouped_indices; but the longest sample of all is not moved to the front.
    """
    megabatch = megabatch_steps(len(order), samples_per_step) * samples_per_step
    pieces = [order[begin : begin + megabatch] for begin in range(0, len(order), megabatch)]
    return np.concatenate([piece[np.argsort(-lengths[piece], kind="stable")] for piece in pieces])


def megabatch_steps(num_samples: int, samples_per_step: int) -> int:
    """How many steps' samples `grouped_by_length` sorts together."""
    return max(1, min(num_samples // (samples_per_step * MIN_MEGABATCHES), MAX_MEGABATCH))


def read_permutation(path: Path, num_samples: int, epoch: int) -> Ints:
    """Read an epoch's order from a file; later epochs than it has begin again with its first.

    Raises
    ------
    ScenarioError
        If the file does not hold one array of permutations of the data set.
    """
    stored = list(read_npz(path).values())
    rows = np.atleast_2d(stored[0]) if len(stored) == 1 else np.empty((0, 0))
    right = rows.ndim == 2 and rows.shape[1] == num_samples and len(rows) > 0
    if not right or (np.sort(rows, axis=1) != np.arange(num_samples)).any():
        raise ScenarioError(
            [
                f"{path}: is no order of the data set; store one array of shape ({num_samples},) "
                f"or (epochs, {num_samples}), each row a permutation of 0 ... {num_samples - 1}."
            ]
        )
    order: Ints = rows[epoch % len(rows)].astype(np.int64)
    return order
