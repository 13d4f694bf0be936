"""Slowest ranks: who was the last to be done with its own work, in how many steps, and by how much.

The work of a step is what a rank's compute stream does, without waiting. How far the slowest rank
is beyond the median is what half of the others, or more, wait for it, where ranks meet in each
step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.results.blocks import Block
from simdp.results.metrics import num_warm_up
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE

WAIT = ACTIVITIES.index("wait")

ALIKE = 1e-9
"""A rank is beyond the median that takes longer by more than this part of it."""


def busy_times(blocks: Iterable[Block], world_size: int, num_steps: int) -> Floats:
    """How long each rank's compute stream works in a step, `(num_steps, world_size)` [s]."""
    busy = np.zeros((num_steps, world_size))
    for block in blocks:
        on_compute = isinstance(block.lane, int) and block.lane == COMPUTE_LANE
        if on_compute and block.activity != WAIT and 0 <= block.step < num_steps:
            length = block.end - block.start
            busy[block.step] += np.bincount(block.ranks, length, minlength=world_size)
    return busy


def slowest(busy: Floats, local_size: int) -> list[dict[str, Any]]:
    """Name the ranks that were the slowest of a steady step.

    Parameters
    ----------
    busy : ndarray, shape `(num_steps, world_size)`
        As from `busy_times`.
    local_size : int
        Ranks of a node.

    Returns
    -------
    list of dict
        The one first that cost most: ``rank``, ``node``, ``steps``, in how many it was, and
        ``seconds``, by how much it was beyond the median, as a mean over all steady steps [s].
    """
    steady = busy[num_warm_up(len(busy)) :]
    if not steady.size:
        return []
    who, median = steady.argmax(axis=1), np.median(steady, axis=1)
    beyond = steady.max(axis=1) - median
    counts = beyond > ALIKE * median
    found = [
        {
            "rank": rank,
            "node": rank // local_size,
            "steps": int((who[counts] == rank).sum()),
            "seconds": float(beyond[counts & (who == rank)].sum()) / len(steady),
        }
        for rank in np.unique(who[counts]).tolist()
    ]
    return sorted(found, key=lambda one: (-one["seconds"], one["rank"]))
