"""Trace choice: what of a run goes into trace.json, where not all of it fits.

What does not fit is left out in this order: transfers, of the last collectives first; steps, the
setup and the first ones first, since they are warm-up, but only as long as a few ranks do not fit
with all of them; ranks, the last ones first, but for rank 0 and the slowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.reports.figures import consecutive
from simdp.reports.slow_ranks import slow_ranks
from simdp.results.blocks import Block
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, SETUP, Trace

FEW_RANKS = 8
"""Ranks that are worth more than early steps, which look like the later ones."""

_TRANSFER = ACTIVITIES.index("transfer")


class Choice(NamedTuple):
    """What is shown.

    Attributes
    ----------
    ranks : list of int
        In order.
    trace : Trace
        Their spans.
    said : dict of str to str
        Which ranks; and which steps and transfers, where not all.
    """

    ranks: list[int]
    trace: Trace
    said: dict[str, str]


def choose(result: Result, limit: int) -> Choice:
    """Choose so many spans of a run, or a rank's last step where that is more."""
    trace, n = result.trace, result.world_size
    assert trace is not None, "only a result that was just simulated has a trace"
    if len(trace) <= limit:
        return Choice(list(range(n)), trace, {"ranks": _listed(list(range(n)), n)})
    blocks = trace.blocks
    first, last = _first_step(blocks, n, limit), max(block.step for block in blocks)
    transfers = [block for block in blocks if block.activity == _TRANSFER]
    own = [b for b in blocks if b.step >= first and b.activity != _TRANSFER]
    order = _by_worth(n, slow_ranks(result, own))
    counts = np.cumsum(_spans_per_rank(own, n)[order])
    num_ranks = max(int(np.searchsorted(counts, limit, side="right")), 1)
    room = limit - int(counts[-1])  # less than none where ranks are left out
    fitting = _whole_calls([block for block in transfers if block.step >= first], room)
    ranks = sorted(order[:num_ranks].tolist())
    said = {"ranks": _listed(ranks, n)}
    if first > SETUP:
        said["steps"] = f"{first + 1} ... {last + 1} of {last + 1}"
    if len(fitting) < len(transfers):
        which = f"the first {_count(fitting)}" if fitting else "none"
        said["transfers"] = f"{which} of {_count(transfers)}"
    chosen = Trace(own + fitting, trace.names, trace.memory)
    return Choice(ranks, chosen.of_ranks(ranks) if num_ranks < n else chosen, said)


def _listed(ranks: list[int], world_size: int) -> str:
    """Write which ranks are shown: ``"0 ... 6, 21 of 64"``."""
    said = [f"{low} ... {high}" if low < high else str(low) for low, high in consecutive(ranks)]
    return f"{', '.join(said)} of {world_size}"


def _by_worth(world_size: int, slow: Iterable[int]) -> Ints:
    """Put rank 0 and the slowest first, the others in their order."""
    worth = list(dict.fromkeys([0, *slow]))
    return np.concatenate([worth, np.delete(np.arange(world_size), worth)]).astype(np.int64)


def _count(blocks: Iterable[Block]) -> int:
    return sum(len(block.ranks) for block in blocks)


def _spans_per_rank(blocks: Sequence[Block], world_size: int) -> Ints:
    """Count spans; blocks that share their ranks are counted in one go."""
    times: dict[int, int] = {}
    sharing = {}
    for block in blocks:
        key = id(block.ranks)
        times[key] = times.get(key, 0) + 1
        sharing[key] = block.ranks
    counts = np.zeros(world_size, dtype=np.int64)
    for key, ranks in sharing.items():
        counts += times[key] * np.bincount(ranks, minlength=world_size)
    return counts


def _first_step(blocks: Sequence[Block], world_size: int, limit: int) -> int:
    """Find the first step from which on a few ranks fit; a file has one step at least."""
    few = min(world_size, FEW_RANKS)
    last = max(block.step for block in blocks)
    counts = [0] * (last - SETUP + 1)
    known: dict[int, int] = {}
    for block in blocks:
        if block.activity == _TRANSFER:
            continue
        key = id(block.ranks)
        if key not in known:
            known[key] = int((block.ranks < few).sum())
        counts[block.step - SETUP] += known[key]
    fitting = sum(count <= limit for count in accumulate(reversed(counts)))
    return max(min(last - fitting + 1, last), SETUP)


def _whole_calls(transfers: Sequence[Block], room: int) -> list[Block]:
    """Keep the transfers of the first collectives, of each all or none."""
    kept: list[Block] = []
    for _, call in groupby(transfers, key=lambda block: (block.step, block.name)):
        blocks = list(call)
        room -= _count(blocks)
        if room < 0:
            break
        kept += blocks
    return kept
