"""Blocks of spans, what a trace is kept in, and columns of spans, what it is shown in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints

Columns = dict[str, Array]

COLUMNS = ("rank", "step", "lane", "activity", "name", "start", "end", "nbytes")
"""What there is to say about a span, in the order of `Block`."""


class Call(NamedTuple):
    """What a collective is asked for.

    Attributes
    ----------
    collective : str
        Such as ``"all_reduce"``.
    nbytes : float
        The whole buffer [bytes].
    group_size : int
        Ranks that do it together.
    """

    collective: str
    nbytes: float
    group_size: int


class Block(NamedTuple):
    """One thing that some ranks did: a span for each of them; every array is shaped as ``ranks``.

    Attributes
    ----------
    ranks : ndarray, int64
        Who. Equal arrays are mostly one and the same array.
    step : int
        As in `simdp.results.trace.Span`.
    lane : int or ndarray, int64
        See `simdp.results.trace.lane_name`; an array for transfers only.
    activity, name : int
        Places in `simdp.results.trace.ACTIVITIES` and in the trace's names.
    start, end : ndarray, float64
        Instants [s]. Not copies: a start is often the array that ended what came before.
    nbytes : float or ndarray, float64
        As in `simdp.results.trace.Span`.
    asked : float or ndarray, float64
        When the rank's compute stream asked for a collective [s]; nan of all else.
    call : Call or None
        What a span of a collective takes part in.
    """

    ranks: Ints
    step: int
    lane: int | Ints
    activity: int
    name: int
    start: Floats
    end: Floats
    nbytes: float | Floats
    asked: float | Floats = math.nan
    call: Call | None = None


def part(block: Block, places: Ints) -> Block:
    """Take some spans of a block, by their places in it."""
    if len(places) == len(block.ranks):
        return block
    lane, nbytes, asked = block.lane, block.nbytes, block.asked
    return block._replace(
        ranks=block.ranks[places],
        lane=lane[places] if isinstance(lane, np.ndarray) else lane,
        start=block.start[places],
        end=block.end[places],
        nbytes=nbytes[places] if isinstance(nbytes, np.ndarray) else nbytes,
        asked=asked[places] if isinstance(asked, np.ndarray) else asked,
    )


def columns_of(blocks: Sequence[Block]) -> Columns:
    """Lay blocks end to end.

    Parameters
    ----------
    blocks : sequence of Block
        In any order.

    Returns
    -------
    dict of str to ndarray, shape `(num_spans,)`
        By the names of a trace's columns, not in their order.
    """
    lengths = [len(block.ranks) for block in blocks]
    columns: Columns = {}
    for i, key in enumerate(COLUMNS):
        dtype = np.float64 if key in ("start", "end", "nbytes") else np.int64
        values: list[Any] = [block[i] for block in blocks]
        if any(isinstance(value, np.ndarray) for value in values):
            parts = [np.broadcast_to(value, n) for value, n in zip(values, lengths, strict=True)]
            columns[key] = np.concatenate(parts).astype(dtype, copy=False)
        else:
            columns[key] = np.repeat(np.array(values, dtype=dtype), lengths)
    return columns


def in_order(columns: Columns) -> Columns:
    """Sort spans by rank, lane, start and end; the rest decides which of two equals is first."""
    keys = ("name", "activity", "end", "start", "lane", "rank")
    order = np.lexsort([columns[key] for key in keys])
    return {key: column[order] for key, column in columns.items()}


def blocks_by_turn(columns: Columns) -> list[Block]:
    """Make blocks of spans: the first of each rank's lane, then the second of each, and so on.

    Parameters
    ----------
    columns : dict of str to ndarray, shape `(num_spans,)`
        As from `columns_of`.

    Returns
    -------
    list of Block
        In each of them the ranks ascend; a rank's spans of a lane come in the order of time.
    """
    num_spans = len(columns["rank"])
    if not num_spans:
        return []
    columns = in_order(columns)
    heads = np.flatnonzero(_changes(columns, "rank", "lane"))
    turn = np.arange(num_spans) - np.repeat(heads, np.diff(heads, append=num_spans))
    columns["turn"] = turn
    keys = ("name", "activity", "step", "lane", "turn")
    order = np.lexsort([columns["rank"], *(columns[key] for key in keys)])
    columns = {key: column[order] for key, column in columns.items()}
    cuts = [*np.flatnonzero(_changes(columns, *keys)).tolist(), num_spans]
    facts = [columns[key][cuts[:-1]].tolist() for key in ("step", "lane", "activity", "name")]
    rank, start, end, nbytes = (columns[key] for key in ("rank", "start", "end", "nbytes"))
    return [
        Block(rank[i:j], step, lane, activity, name, start[i:j], end[i:j], nbytes[i:j])
        for i, j, step, lane, activity, name in zip(cuts[:-1], cuts[1:], *facts, strict=True)
    ]


def _changes(columns: Columns, *keys: str) -> Bools:
    """Mark the rows that differ from the row before in one of some columns."""
    new = np.ones(len(columns["rank"]), dtype=bool)
    new[1:] = False
    for key in keys:
        new[1:] |= columns[key][1:] != columns[key][:-1]
    return new


class Stack(NamedTuple):
    """Blocks of one activity and the same ranks, one per row.

    Attributes
    ----------
    ranks : ndarray, shape `(num_ranks,)`, int64
        Who, in every row.
    activity : int
        As in `Block`.
    steps : ndarray, shape `(num_blocks,)`, int64
        Of each row; they ascend.
    start, end : ndarray, shape `(num_blocks, num_ranks)`, float64
        Instants [s].
    nbytes : float or ndarray, shape `(num_ranks,)`, float64
        The sum over the rows.
    """

    ranks: Ints
    activity: int
    steps: Ints
    start: Floats
    end: Floats
    nbytes: float | Floats


MAX_STACKED = 2_048
"""Spans in a stack: enough to make a call of NumPy cheap beside its work, and near in time."""


def stacks(blocks: Sequence[Block], num_spans: int | None = None) -> Iterator[Stack]:
    """Stack blocks of one activity and the same ranks, so that many small ones cost as one.

    Stacks have ``num_spans`` at most (`MAX_STACKED`), or one block; the rounding of sums over them
    may depend on how many.
    """
    groups: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.activity, id(block.ranks)), []).append(block)
    for group in groups.values():
        ranks, activity = group[0].ranks, group[0].activity
        group.sort(key=lambda block: block.step)
        most = max((num_spans or MAX_STACKED) // len(ranks), 1)
        for i in range(0, len(group), most):
            few = group[i : i + most]
            steps = np.array([block.step for block in few])
            start, end = _rows([block.start for block in few]), _rows([block.end for block in few])
            yield Stack(ranks, activity, steps, start, end, sum(block.nbytes for block in few))


def _rows(arrays: list[Floats]) -> Floats:
    return np.array(arrays) if len(arrays) > 1 else arrays[0][None]


def is_everyone(ranks: Ints, world_size: int) -> bool:
    """Tell whether these are all ranks, in order."""
    return len(ranks) == world_size and bool((ranks[1:] > ranks[:-1]).all())
