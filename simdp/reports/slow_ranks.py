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
    cluster = result.scenario["cluster"]
    listed: list[dict[str, Any]] = cluster.get("stragglers") or []
    per_node = (cluster.get("devices_per_node") or 0) * cluster.get("ranks_per_device", 1)
    found = [
        (rank, straggler.get("factor"))
        for straggler in listed
        for rank in _ranks_of(straggler, per_node or result.world_size)
        if rank < result.world_size and straggler.get("factor") != 1
    ]
    found.sort(key=lambda pair: (-(pair[1] or 0.0), pair[0]))
    return {rank: f" · {factor:g}×" if factor else "" for rank, factor in found}


def _ranks_of(straggler: dict[str, Any], per_node: int) -> Iterable[int]:
    """The ranks whose compute one is on, where it is on some and not on all."""
    if straggler["kind"] == "slow_node":
        return range(straggler["node"] * per_node, (straggler["node"] + 1) * per_node)
    rank = straggler.get("rank")
    return [rank] if isinstance(rank, int) and straggler["kind"] != "degraded_link" else []


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
