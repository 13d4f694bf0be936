"""Traces as plain arrays, so that a file can hold one, and as they were from such arrays again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.results.blocks import Block, Call
from simdp.results.memory import Holding
from simdp.results.trace import Trace

INTEGERS = ("ranks", "step", "lane", "activity", "name", "part", "call")
"""Fields that are whole numbers; the others are floats."""


def arrays_of(trace: Trace) -> dict[str, Array]:
    """Lay a trace out in a few arrays.

    Parameters
    ----------
    trace : Trace
        Of any number of blocks.

    Returns
    -------
    dict of str to ndarray
        Of blocks and holdings: how many ranks each has, and every field, whose values lie end to
        end: one for a number, one for each rank for an array; and which of them are arrays, and
        which are whole numbers. Names, and calls, are listed once, as JSON.
    """
    calls = {call: i for i, call in enumerate(dict.fromkeys(b.call for b in trace.blocks))}
    blocks = [(*block[:-1], calls[block.call]) for block in trace.blocks]
    return {
        "names": _text(trace.names),
        "calls": _text(list(calls)),
        **_packed("blocks", blocks, Block._fields),
        **_packed("memory", trace.memory, Holding._fields),
    }


def trace_of(arrays: Mapping[str, Array]) -> Trace:
    """Make the trace again that `arrays_of` has laid out.

    Raises
    ------
    KeyError, ValueError, TypeError
        If an array is missing, or another one.
    """
    names, written = (json.loads(arrays[key].tobytes()) for key in ("names", "calls"))
    calls = dict(enumerate(call and Call(*call) for call in written))
    rows = _unpacked("blocks", arrays, Block._fields)
    blocks = [Block(*row)._replace(call=calls[row[-1]]) for row in rows]
    memory = [Holding(*row) for row in _unpacked("memory", arrays, Holding._fields)]
    return Trace(blocks, names, memory)


def _text(value: Any) -> Array:
    """Plain data as the bytes of JSON."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _packed(what: str, rows: Sequence[tuple[Any, ...]], fields: Sequence[str]) -> dict[str, Array]:
    found: dict[str, Array] = {f"{what}.lengths": np.array([len(row[0]) for row in rows], np.int64)}
    for i, field in enumerate(fields):
        values = [row[i] for row in rows]
        dtype = np.int64 if field in INTEGERS else np.float64
        flat = [np.atleast_1d(np.asarray(value, dtype=dtype)) for value in values]
        found[f"{what}.{field}"] = np.concatenate(flat) if flat else np.empty(0, dtype)
        found[f"{what}.{field}.arrays"] = np.array([np.ndim(value) > 0 for value in values], bool)
        whole = [np.asarray(value).dtype.kind in "iu" for value in values]
        found[f"{what}.{field}.whole"] = np.array(whole, bool)
    return found


def _unpacked(
    what: str, arrays: Mapping[str, Array], fields: Sequence[str]
) -> list[tuple[Any, ...]]:
    lengths = arrays[f"{what}.lengths"]
    columns: list[list[Any]] = []
    for field in fields:
        name = f"{what}.{field}"
        values, are_arrays, whole = (arrays[f"{name}{part}"] for part in ("", ".arrays", ".whole"))
        ends = np.cumsum(np.where(are_arrays, lengths, 1)).tolist()
        if len(are_arrays) != len(lengths) or len(values) != (ends[-1] if ends else 0):
            raise ValueError(f"{name} has another length")
        column: list[Any] = []
        for begin, end, array, integer in zip([0, *ends], ends, are_arrays, whole, strict=False):
            part = values[begin:end]
            part = part.astype(np.int64, copy=False) if integer else part
            column.append(part if array else part[0].item())
        columns.append(_shared(column) if field == "ranks" else column)
    return list(zip(*columns, strict=True))


def _shared(ranks: list[Array]) -> list[Array]:
    """Let equal arrays be one, by which who reads a trace knows them."""
    known: dict[bytes, Array] = {}
    return [known.setdefault(array.tobytes(), array) for array in ranks]
