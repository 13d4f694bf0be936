"""Span and Trace: who did what, when.

A run of 16,384 ranks has millions of spans. They are kept as they are recorded, in blocks: one
operation of many ranks, whose instants are arrays that neighbours share. What needs all of them
(`simdp.results.metrics`) works block by block; columns of spans, in order, are made for who asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.results.blocks import (
    COLUMNS,
    Block,
    Call,
    Columns,
    blocks_by_turn,
    columns_of,
    in_order,
    part,
)
from simdp.results.memory import PARTS, Holding

ACTIVITIES = (
    "input",
    "host",
    "forward",
    "backward",
    "copy",
    "update",
    "wait",
    "comm",
    "transfer",
    "compute",
    "compress",
)
"""What a span can be.

``input`` is waiting for samples; ``host`` is what the device waits for its host; ``forward`` and
``backward`` are compute; ``copy`` moves gradients into buckets and back; ``wait``
is a collective's time before its slowest rank is ready for it, ``comm`` the rest of it; a
``transfer`` is one chunk over one route; ``compute`` is work of a rank program, which is no pass;
``compress`` makes gradients small before they travel, and whole again.
"""

COMPUTE_LANE, COMM_LANE, FIRST_SEND_LANE = 0, 1, 2

FIRST_STREAM_LANE = FIRST_SEND_LANE + 2**20
"""Beyond a lane for every rank that there may be: what communicates beside the lane ``comm``."""

SETUP = -1
"""The step of what happens before the first one."""


class Span(NamedTuple):
    """One thing that one rank did.

    Attributes
    ----------
    rank, step : int
        Who, and in which step; -1 is the setup.
    lane : str
        ``"compute"``, ``"comm"``, ``"comm 2"`` and so on, or ``"send to r"``. Spans of a lane
        never overlap.
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
    if lane >= FIRST_STREAM_LANE:
        return f"comm {lane - FIRST_STREAM_LANE + 2}"
    if lane >= FIRST_SEND_LANE:
        return f"send to {lane - FIRST_SEND_LANE}"
    return ("compute", "comm")[lane]


class Trace:
    """Every span of a run, in blocks as they were recorded, or in order.

    Its columns, one value per span ordered by rank, lane and start, are made when first asked for:
    `rank`, `step`, `lane`, `activity`, `name` (the last three are numbers: see `lane_name`,
    `ACTIVITIES` and ``names``), `start`, `end` and `nbytes`. Of millions of spans they take long,
    and much memory; `of_ranks` leaves most of them out beforehand.

    Parameters
    ----------
    blocks : list of Block
        The spans.
    names : list of str
        What ``name`` counts into.
    memory : list of Holding
        What ranks took and gave back, in the order of the script on each rank.
    """

    def __init__(
        self, blocks: list[Block], names: list[str], memory: Sequence[Holding] = ()
    ) -> None:
        self.blocks, self.names, self.memory = blocks, names, memory

    @cached_property
    def columns(self) -> Columns:
        """All of them, by name."""
        return in_order(columns_of(self.blocks))

    @property
    def rank(self) -> Ints:
        """Whose span it is."""
        return self.columns["rank"]

    @property
    def step(self) -> Ints:
        """In which step; -1 is the setup."""
        return self.columns["step"]

    @property
    def lane(self) -> Ints:
        """Numbers of lanes."""
        return self.columns["lane"]

    @property
    def activity(self) -> Ints:
        """Places in `ACTIVITIES`."""
        return self.columns["activity"]

    @property
    def name(self) -> Ints:
        """Places in ``names``."""
        return self.columns["name"]

    @property
    def start(self) -> Floats:
        """Instants [s]."""
        return self.columns["start"]

    @property
    def end(self) -> Floats:
        """Instants [s]."""
        return self.columns["end"]

    @property
    def nbytes(self) -> Floats:
        """Bytes sent, or moved in memory by a copy."""
        return self.columns["nbytes"]

    @property
    def spans(self) -> Sequence[Span]:
        """The spans, made one by one as they are asked for."""
        return _Spans(self)

    def __len__(self) -> int:
        return sum(len(block.ranks) for block in self.blocks)

    def of_ranks(self, ranks: Sequence[int]) -> Trace:
        """Take the spans of some ranks.

        Parameters
        ----------
        ranks : sequence of int
            Such as ``range(64)``.

        Returns
        -------
        Trace
            With the same names.
        """
        asked, kept = np.array(ranks, dtype=np.int64), []
        known: dict[int, Ints] = {}  # by the array of ranks, which many blocks share
        for block in self.blocks:
            key = id(block.ranks)
            if key not in known:
                known[key] = np.flatnonzero(np.isin(block.ranks, asked))
            if len(known[key]):
                kept.append(part(block, known[key]))
        return Trace(kept, self.names)

    def select(self, *activities: str) -> Bools:
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


class TraceToCome(Trace):
    """A trace that is made when somebody looks at it.

    Parameters
    ----------
    make : callable
        Makes it.
    """

    def __init__(self, make: Callable[[], Trace]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Trace:
        return self._make()

    @property
    def blocks(self) -> list[Block]:  # type: ignore[override]
        """The spans."""
        return self._made.blocks

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        """What ``name`` counts into."""
        return self._made.names

    @property
    def memory(self) -> Sequence[Holding]:  # type: ignore[override]
        """What ranks took and gave back."""
        return self._made.memory


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


class StepEnds:
    """When each rank's last span of each step ends, without any span.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._ends: dict[int, Floats] = {}
        self._world_size = world_size

    def add(self, ranks: Ints, step: int, end: Floats) -> None:
        """Take the ends of spans of some ranks [s]."""
        last = self._ends.setdefault(step, np.zeros(self._world_size))
        if len(ranks) == self._world_size:  # all of them, in order
            np.maximum(last, end, out=last)
        else:
            np.maximum.at(last, ranks, end)

    def ends(self) -> Floats:
        """When each rank is done with the setup and with each step; see `metrics.step_ends`."""
        steps = range(SETUP, max(self._ends, default=SETUP) + 1)
        nothing = np.zeros(self._world_size)
        return np.maximum.accumulate([self._ends.get(step, nothing) for step in steps]).T


class TraceBuilder:
    """Collects spans while a run is played: whole arrays of ranks, or one rank at a time.

    Parameters
    ----------
    keep : bool
        False takes every span and keeps none, for a job that nobody asks about.
    ends : StepEnds, optional
        Told of every span, for who asks about nothing else.
    """

    def __init__(self, keep: bool = True, ends: StepEnds | None = None) -> None:
        self.keep, self.ends = keep, ends
        self._blocks: list[Block] = []
        self._memory: list[Holding] = []
        self._rows: list[tuple[int, int, int, int, int, float, float, float]] = []
        self._names: dict[str, int] = {}
        self._known: dict[int, Ints] = {}  # the last array of ranks of each length

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _shared(self, ranks: Ints) -> Ints:
        """Replace an array of ranks by an equal one that is there already."""
        known = self._known.get(len(ranks))
        if known is ranks or (known is not None and np.array_equal(known, ranks)):
            return known
        self._known[len(ranks)] = ranks
        return ranks

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
        call: Call | None = None,
        asked: float | Floats = math.nan,
    ) -> None:
        """Add a span for each of some ranks; every array is shaped as ``ranks``.

        The arrays are kept, not copied: who made them must not write into them any more.
        """
        if self.ends is not None:
            self.ends.add(ranks, step, end)
        if not len(ranks) or not self.keep:
            return
        code, number = ACTIVITIES.index(activity), self._number(name)
        if isinstance(nbytes, np.ndarray) and (nbytes == nbytes[0]).all():
            nbytes = float(nbytes[0])  # a number takes less room than an array of equal ones
        ranks = self._shared(ranks)
        self._blocks.append(Block(ranks, step, lane, code, number, start, end, nbytes, asked, call))

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
        if self.ends is not None:
            self.ends.add(np.array([rank]), step, np.array([end]))
        if self.keep:
            code, number = ACTIVITIES.index(activity), self._number(name)
            self._rows.append((rank, step, lane, code, number, start, end, nbytes))

    def hold(self, ranks: Ints, step: int, part: str, at: Floats, nbytes: float | Floats) -> None:
        """Note that some ranks take memory, or give it back; see `Holding`."""
        if self.keep:
            number = PARTS.index(part)
            self._memory.append(Holding(self._shared(ranks), step, number, at, nbytes))

    def build(self) -> Trace:
        """Hand over all spans; single ones are put into blocks of what ranks did in turn."""
        # Names are numbered alphabetically, so that the order in which ranks were played is gone.
        names = sorted(self._names)
        place = {name: i for i, name in enumerate(names)}
        renumber = [place[name] for name in self._names]
        columns = {
            key: np.array([row[i] for row in self._rows], dtype=np.int64 if i < 5 else np.float64)
            for i, key in enumerate(COLUMNS)
        }
        if names:
            columns["name"] = np.array(renumber)[columns["name"]]
        blocks = [
            block._replace(ranks=self._shared(block.ranks)) for block in blocks_by_turn(columns)
        ]
        blocks += [block._replace(name=renumber[block.name]) for block in self._blocks]
        return Trace(blocks, names, self._memory)
