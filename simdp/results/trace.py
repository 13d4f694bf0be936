"""Span and Trace: who did what, when; kept as columns, so that a span costs a few bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ACTIVITIES = ("forward", "backward", "copy", "update", "wait", "comm", "transfer")
"""What a span can be.

``forward`` and ``backward`` are compute; ``copy`` moves gradients into buckets and back; ``wait``
is a collective's time before its slowest rank is ready for it, ``comm`` the rest of it; a
``transfer`` is one chunk over one route.
"""

COMPUTE_LANE, COMM_LANE, FIRST_SEND_LANE = 0, 1, 2

SETUP = -1
"""The step of what happens before the first one."""


class Span(NamedTuple):
    """One thing that one rank did.

    Attributes
    ----------
    rank, step : int
        Who, and in which step; -1 is the setup.
    lane : str
        ``"compute"``, ``"comm"``, or ``"send to r"``. Spans of a lane never overlap.
    activity, name : str
        One of `ACTIVITIES`, and what exactly, such as a layer or a bucket.
    start, end : float
        Instants [s].
    nbytes : float
        Bytes that the rank sends; of a copy, bytes moved in memory; else 0.
    """

    rank: int
    step: int
    lane: str
    activity: str
    name: str
    start: float
    end: float
    nbytes: float


def lane_name(lane: int) -> str:
    """Write a lane's number as its name."""
    if lane >= FIRST_SEND_LANE:
        return f"send to {lane - FIRST_SEND_LANE}"
    return ("compute", "comm")[lane]


class Trace:
    """Every span of a run, in columns of equal length, ordered by rank, lane and start.

    Attributes
    ----------
    rank, step, lane, activity, name : ndarray, int64
        The last three are numbers: see `lane_name`, `ACTIVITIES` and ``names``.
    start, end, nbytes : ndarray, float64
        As in `Span`.
    names : list of str
        What ``name`` counts into.
    """

    def __init__(self, columns: dict[str, NDArray[Any]], names: list[str]) -> None:
        # By rank, lane, start and end; the rest decides nothing but which of two equals is first.
        order = np.lexsort(
            [columns[key] for key in ("name", "activity", "end", "start", "lane", "rank")]
        )
        self.rank: Ints = columns["rank"][order]
        self.step: Ints = columns["step"][order]
        self.lane: Ints = columns["lane"][order]
        self.activity: Ints = columns["activity"][order]
        self.name: Ints = columns["name"][order]
        self.start: Floats = columns["start"][order]
        self.end: Floats = columns["end"][order]
        self.nbytes: Floats = columns["nbytes"][order]
        self.names = names

    @property
    def spans(self) -> Sequence[Span]:
        """The spans, made one by one as they are asked for."""
        return _Spans(self)

    def __len__(self) -> int:
        return len(self.rank)

    def select(self, *activities: str) -> NDArray[np.bool_]:
        """Mark the spans of some activities."""
        return np.isin(self.activity, [ACTIVITIES.index(name) for name in activities])

    def span(self, i: int) -> Span:
        """Make the i-th span."""
        return Span(
            int(self.rank[i]),
            int(self.step[i]),
            lane_name(int(self.lane[i])),
            ACTIVITIES[self.activity[i]],
            self.names[self.name[i]],
            float(self.start[i]),
            float(self.end[i]),
            float(self.nbytes[i]),
        )


class _Spans(Sequence[Span]):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return len(self._trace)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return [self._trace.span(i) for i in positions]
        return self._trace.span(positions)

    def __iter__(self) -> Iterator[Span]:
        return map(self._trace.span, range(len(self)))


class TraceBuilder:
    """Collects spans while a run is played: whole arrays of ranks, or one rank at a time."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Any, ...]] = []
        self._rows: list[tuple[int, int, int, int, int, float, float, float]] = []
        self._names: dict[str, int] = {}

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def add(
        self,
        ranks: Ints,
        step: int,
        lane: int | Ints,
        activity: str,
        name: str,
        start: Floats,
        end: Floats,
        nbytes: float | Floats = 0.0,
    ) -> None:
        """Add a span for each of some ranks; every array is shaped as ``ranks``."""
        code, number = ACTIVITIES.index(activity), self._number(name)
        self._blocks.append((ranks, step, lane, code, number, start, end, nbytes))

    def add_one(
        self,
        rank: int,
        step: int,
        lane: int,
        activity: str,
        name: str,
        start: float,
        end: float,
        nbytes: float = 0.0,
    ) -> None:
        """Add one span."""
        code, number = ACTIVITIES.index(activity), self._number(name)
        self._rows.append((rank, step, lane, code, number, start, end, nbytes))

    def build(self) -> Trace:
        """Put all spans in order."""
        # Names are numbered alphabetically, so that the order in which ranks were played is gone.
        names = sorted(self._names)
        renumber = np.array([names.index(name) for name in self._names], dtype=np.int64)
        keys = ("rank", "step", "lane", "activity", "name", "start", "end", "nbytes")
        lengths = [len(block[0]) for block in self._blocks]
        columns = {}
        for i, key in enumerate(keys):
            dtype = np.float64 if i > 4 else np.int64
            rows = np.array([row[i] for row in self._rows], dtype=dtype)
            values = [block[i] for block in self._blocks]
            if any(isinstance(value, np.ndarray) for value in values):
                parts = [
                    value if isinstance(value, np.ndarray) else np.full(length, value)
                    for value, length in zip(values, lengths, strict=True)
                ]
                blocks = np.concatenate(parts)
            else:
                blocks = np.repeat(np.array(values, dtype=dtype), lengths)
            columns[key] = np.concatenate([rows, blocks]).astype(dtype, copy=False)
        if len(names):
            columns["name"] = renumber[columns["name"]]
        return Trace(columns, names)
