"""Slow ranks: who keeps everybody waiting; pictures and traces leave them out last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from simdp.results.blocks import Block
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES

SLOWER, NUM_SLOWEST = 1.02, 3
"""A rank is slow that computes so many times as long as most do; so many of them are named."""

BUSY = tuple(ACTIVITIES.index(name) for name in ("forward", "backward", "compute"))


def slow_ranks(result: Result, blocks: Iterable[Block]) -> dict[int, str]:
    """Name the ranks that the scenario slows down; without such ones, those that were slow.

    Parameters
    ----------
    result : Result
        Whose scenario it is.
    blocks : iterable of Block
        What the ranks did in the time that is looked at.

    Returns
    -------
    dict of int to str
        The slowest first, with what is said of them: ``" · 2×"``, or ``" · +12 %"``.
    """
    return _stragglers(result) or _slowest(blocks, result.world_size)


def _stragglers(result: Result) -> dict[int, str]:
    listed: list[dict[str, Any]] = result.scenario["cluster"].get("stragglers") or []
    found = [
        (straggler["rank"], straggler.get("factor"))
        for straggler in listed
        if isinstance(straggler.get("rank"), int)
        and straggler["rank"] < result.world_size
        and straggler.get("factor") != 1
    ]
    found.sort(key=lambda pair: (-(pair[1] or 0.0), pair[0]))
    return {rank: f" · {factor:g}×" if factor else "" for rank, factor in found}


def _slowest(blocks: Iterable[Block], world_size: int) -> dict[int, str]:
    busy = np.zeros(world_size)
    for block in blocks:
        if block.activity in BUSY:
            busy += np.bincount(block.ranks, block.end - block.start, minlength=world_size)
    usual = float(np.median(busy))
    if not usual:
        return {}
    first = np.argsort(-busy, kind="stable")[:NUM_SLOWEST].tolist()
    return {
        rank: f" · +{busy[rank] / usual - 1:.0%}".replace("%", " %")
        for rank in first
        if busy[rank] > SLOWER * usual
    }
