"""Spans of a run, stored as columns.

A run of 16,384 ranks has millions of spans. They are stored in blocks, as recorded: one operation
of many ranks, with instants in arrays shared between blocks. `simdp.results.metrics` works block by
block; sorted columns of spans are built on request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints
from simdp.results.memory import MEMORY_PARTS, Holding

# Blocks -------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Fields of spans, each of shape `(num_spans,)`, in the order of `SpanBlock`."""

    rank: Ints
    step: Ints
    lane: Ints
    activity: Ints
    name: Ints
    start: Floats
    end: Floats
    nbytes: Floats

    def at(self, places: Ints | Bools | slice) -> Columns:
        """Return some spans, by their places."""
        chosen: list[Array] = [column[places] for column in self]
        return Columns(*chosen)


class CallSize(NamedTuple):
    """Size of a collective call."""

    collective: str  # such as ``"all_reduce"``
    nbytes: float  # the whole buffer [bytes]
    group_size: int  # ranks of the collective


class SpanBlock(NamedTuple):
    """One operation of some ranks: a span for each; every array is shaped as ``ranks``."""

    ranks: Ints  # equal arrays are mostly the same object.
    step: int  # as in `simdp.results.trace.Span`
    lane: int | Ints  # see `simdp.results.trace.lane_name`; an array for transfers only
    # activity, name: places in `simdp.results.trace.ACTIVITIES` and in the trace's names
    activity: int
    name: int
    # start, end: instants [s]. Not copies: a start is often the end array of the previous block.
    start: Floats
    end: Floats
    nbytes: float | Floats  # as in `simdp.results.trace.Span`
    # when the rank's compute stream issued a collective [s]; nan otherwise
    asked: float | Floats = math.nan
    call: CallSize | None = None  # the call that a collective's span belongs to


def part(block: SpanBlock, places: Ints) -> SpanBlock:
    """Return some spans of a block, by their places in it."""
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


def columns_of(blocks: Sequence[SpanBlock]) -> Columns:
    """Concatenate blocks into columns, in the blocks' order."""
    lengths = [len(block.ranks) for block in blocks]
    columns = list[Array]()
    for i, key in enumerate(Columns._fields):
        dtype = np.float64 if key in ("start", "end", "nbytes") else np.int64
        values: list[Any] = [block[i] for block in blocks]
        if any(isinstance(value, np.ndarray) for value in values):
            parts = [np.broadcast_to(value, n) for value, n in zip(values, lengths, strict=True)]
            columns.append(np.concatenate(parts).astype(dtype, copy=False))
        else:
            columns.append(np.repeat(np.array(values, dtype=dtype), lengths))
    return Columns(*columns)


def in_order(columns: Columns) -> Columns:
    """Sort spans by rank, lane, start and end; ties by activity and name."""
    c = columns
    return c.at(np.lexsort([c.name, c.activity, c.end, c.start, c.lane, c.rank]))


def blocks_by_turn(columns: Columns) -> list[SpanBlock]:
    """Return blocks of spans: the first of each rank's lane, then the second of each, and so on.

    ``columns`` are as from `columns_of`. In each block the ranks ascend; a rank's spans of a lane
    are in order of time.
    """
    num_spans = len(columns.rank)
    if not num_spans:
        return []
    c = in_order(columns)
    heads = np.flatnonzero(changes(c.rank, c.lane))
    turn = np.arange(num_spans) - np.repeat(heads, np.diff(heads, append=num_spans))
    order = np.lexsort([c.rank, c.name, c.activity, c.step, c.lane, turn])
    c, turn = c.at(order), turn[order]
    new = changes(c.name, c.activity, c.step, c.lane, turn)
    cuts = [*np.flatnonzero(new).tolist(), num_spans]
    facts = [column[cuts[:-1]].tolist() for column in (c.step, c.lane, c.activity, c.name)]
    return [
        SpanBlock(c.rank[i:j], step, lane, activity, name, c.start[i:j], c.end[i:j], c.nbytes[i:j])
        for i, j, step, lane, activity, name in zip(cuts[:-1], cuts[1:], *facts, strict=True)
    ]


def changes(*columns: Array) -> Bools:
    """Mark the rows in which a column differs from the row before; the first row is marked."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = False
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


class Stack(NamedTuple):
    """Blocks of one activity and the same ranks, one per row."""

    ranks: Ints  # shape `(num_ranks,)`: ranks, in every row
    activity: int  # as in `Block`
    steps: Ints  # shape `(num_blocks,)`: of each row, ascending
    # start, end: shape `(num_blocks, num_ranks)`: instants [s]
    start: Floats
    end: Floats
    nbytes: float | Floats  # shape `(num_ranks,)`: the sum over the rows


MAX_STACKED = 2_048
"""Spans in a stack: enough to make a call of NumPy cheap relative to its work, and near in time."""


def stacks(blocks: Sequence[SpanBlock], num_spans: int | None = None) -> Iterator[Stack]:
    """Stack blocks of one activity and the same ranks, so that many small ones cost as one.

    Stacks have at most ``num_spans`` (`MAX_STACKED`), or one block; the rounding of sums over them
    may depend on it.
    """
    groups: dict[tuple[int, int], list[SpanBlock]] = {}
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
    """Return whether these are all ranks, in order."""
    return len(ranks) == world_size and bool((ranks[1:] > ranks[:-1]).all())


# Trace --------------------------------------------------------------------------------------------

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
"""Activities of spans.

``input`` is waiting for samples; ``host`` is waiting of the device for its host; ``forward`` and
``backward`` are compute; ``copy`` moves gradients into buckets and back; ``wait`` is a collective's
time before its slowest rank is ready for it, ``comm`` the rest of it; a ``transfer`` is one chunk
over one route; ``compute`` is work of a rank program outside of passes; ``compress`` compresses and
decompresses gradients.
"""

COMPUTE_LANE, COMM_LANE, FIRST_SEND_LANE = 0, 1, 2

FIRST_STREAM_LANE = FIRST_SEND_LANE + 2**20
"""Lanes of further communication streams, beyond one send lane per rank."""

SETUP = -1  # the step of the setup


class Span(NamedTuple):
    """One operation of one rank."""

    rank: int
    step: int  # -1 is the setup
    # ``"compute"``, ``"comm"``, ``"comm 2"`` and so on, or ``"send to r"``. Spans of a lane never
    # overlap.
    lane: str
    # activity, name: one of `ACTIVITIES`, and its name, such as a layer or a bucket
    activity: str
    name: str
    start: float  # instants [s]
    end: float  # instants [s]
    nbytes: float  # bytes that the rank sends; of a copy, bytes moved in memory; else 0


def lane_name(lane: int) -> str:
    """Return the name of a lane."""
    if lane >= FIRST_STREAM_LANE:
        return f"comm {lane - FIRST_STREAM_LANE + 2}"
    if lane >= FIRST_SEND_LANE:
        return f"send to {lane - FIRST_SEND_LANE}"
    return ("compute", "comm")[lane]


class Trace:
    """Every span of a run, in recorded blocks or in order.

    Its columns, one value per span ordered by rank, lane and start, are built on first use: `rank`,
    `step`, `lane`, `activity`, `name` (the last three are numbers: see `lane_name`, `ACTIVITIES`
    and ``names``), `start`, `end` and `nbytes`. Millions of spans take much time and memory; select
    some with `of_ranks` first.

    Parameters
    ----------
    blocks : list of SpanBlock
        The spans.
    names : list of str
        Names, indexed by ``name``.
    memory : list of Holding
        Allocations and releases of ranks, in the order of the script on each rank.
    """

    def __init__(
        self, blocks: list[SpanBlock], names: list[str], memory: Sequence[Holding] = ()
    ) -> None:
        self.blocks, self.names, self.memory = blocks, names, memory

    @cached_property
    def columns(self) -> Columns:
        """All columns."""
        return in_order(columns_of(self.blocks))

    @property
    def rank(self) -> Ints:
        """Rank of each span."""
        return self.columns.rank

    @property
    def step(self) -> Ints:
        """Step of each span; -1 is the setup."""
        return self.columns.step

    @property
    def lane(self) -> Ints:
        """Lane of each span, as a number."""
        return self.columns.lane

    @property
    def activity(self) -> Ints:
        """Activity of each span, an index of `ACTIVITIES`."""
        return self.columns.activity

    @property
    def name(self) -> Ints:
        """Name of each span, an index of ``names``."""
        return self.columns.name

    @property
    def start(self) -> Floats:
        """Start of each span [s]."""
        return self.columns.start

    @property
    def end(self) -> Floats:
        """End of each span [s]."""
        return self.columns.end

    @property
    def nbytes(self) -> Floats:
        """Bytes sent, or moved in memory by a copy."""
        return self.columns.nbytes

    @property
    def spans(self) -> Sequence[Span]:
        """The spans, created one at a time."""
        return _Spans(self)

    def __len__(self) -> int:
        return sum(len(block.ranks) for block in self.blocks)

    def of_ranks(self, ranks: Sequence[int]) -> Trace:
        """Return the spans of some ranks, with the same names."""
        chosen, kept = np.array(ranks, dtype=np.int64), []
        known: dict[int, Ints] = {}  # by the array of ranks, which many blocks share
        for block in self.blocks:
            key = id(block.ranks)
            if key not in known:
                known[key] = np.flatnonzero(np.isin(block.ranks, chosen))
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
    """A trace built by ``make`` on first access."""

    def __init__(self, make: Callable[[], Trace]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Trace:
        return self._make()

    @property
    def blocks(self) -> list[SpanBlock]:  # type: ignore[override]
        """The spans."""
        return self._made.blocks

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        """Names, indexed by ``name``."""
        return self._made.names

    @property
    def memory(self) -> Sequence[Holding]:  # type: ignore[override]
        """Allocations and releases of ranks."""
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
    """End of each rank's last span of each step, without storing spans."""

    def __init__(self, world_size: int) -> None:
        self._ends: dict[int, Floats] = {}
        self._world_size = world_size

    def add(self, ranks: Ints, step: int, end: Floats) -> None:
        """Add the ends of spans of some ranks [s]."""
        last = self._ends.setdefault(step, np.zeros(self._world_size))
        if len(ranks) == self._world_size:  # all of them, in order
            np.maximum(last, end, out=last)
        else:
            np.maximum.at(last, ranks, end)

    def ends(self) -> Floats:
        """Return when each rank ends the setup and each step; see `metrics.step_ends`."""
        steps = range(SETUP, max(self._ends, default=SETUP) + 1)
        nothing = np.zeros(self._world_size)
        return np.maximum.accumulate([self._ends.get(step, nothing) for step in steps]).T


class TraceBuilder:
    """Collects spans during a run: whole arrays of ranks, or one rank at a time.

    Parameters
    ----------
    keep : bool
        False discards every span, for a job without a trace.
    ends : StepEnds, optional
        Receives every span, for runs that need only the ends of steps.
    """

    def __init__(self, keep: bool = True, ends: StepEnds | None = None) -> None:
        self.keep, self.ends = keep, ends
        self._blocks: list[SpanBlock] = []
        self._memory: list[Holding] = []
        self._rows: list[tuple[int, int, int, int, int, float, float, float]] = []
        self._names: dict[str, int] = {}
        self._known: dict[int, Ints] = {}  # the last array of ranks of each length

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _shared(self, ranks: Ints) -> Ints:
        """Replace an array of ranks by an equal stored one."""
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
        call: CallSize | None = None,
        asked: float | Floats = math.nan,
    ) -> None:
        """Add a span for each of some ranks; every array is shaped as ``ranks``.

        The arrays are stored, not copied: the caller must not change them.
        """
        if self.ends is not None:
            self.ends.add(ranks, step, end)
        if not len(ranks) or not self.keep:
            return
        code, number = ACTIVITIES.index(activity), self._number(name)
        if isinstance(nbytes, np.ndarray) and (nbytes == nbytes[0]).all():
            nbytes = float(nbytes[0])  # a number takes less room than an array of equal ones
        ranks = self._shared(ranks)
        self._blocks.append(
            SpanBlock(ranks, step, lane, code, number, start, end, nbytes, asked, call)
        )

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
        """Record that some ranks allocate or release memory; see `Holding`."""
        if self.keep:
            number = MEMORY_PARTS.index(part)
            self._memory.append(Holding(self._shared(ranks), step, number, at, nbytes))

    def build(self) -> Trace:
        """Return all spans; single ones are sorted into blocks of successive operations."""
        # Names are numbered alphabetically, independent of the order of simulation.
        names = sorted(self._names)
        place = {name: i for i, name in enumerate(names)}
        renumber = [place[name] for name in self._names]
        single: list[Array] = [
            np.array([row[i] for row in self._rows], dtype=np.int64 if i < 5 else np.float64)
            for i in range(len(Columns._fields))
        ]
        columns = Columns(*single)
        if names:
            columns = columns._replace(name=np.array(renumber)[columns.name])
        blocks = [
            block._replace(ranks=self._shared(block.ranks)) for block in blocks_by_turn(columns)
        ]
        blocks += [block._replace(name=renumber[block.name]) for block in self._blocks]
        return Trace(blocks, names, self._memory)


# Trace arrays -------------------------------------------------------------------------------------

INTEGERS = ("ranks", "step", "lane", "activity", "name", "part", "call")
"""Integer fields; the others are floats."""


def arrays_of(trace: Trace) -> dict[str, Array]:
    """Convert a trace to a few arrays.

    Of blocks and holdings: how many ranks each has, and every field, with its values concatenated:
    one for a number, one for each rank for an array; and flags for arrays and for whole numbers.
    Names, and calls, are listed once, as JSON.
    """
    calls = {call: i for i, call in enumerate(dict.fromkeys(b.call for b in trace.blocks))}
    blocks = [(*block[:-1], calls[block.call]) for block in trace.blocks]
    return {
        "names": _text(trace.names),
        "calls": _text(list(calls)),
        **_packed("blocks", blocks, SpanBlock._fields),
        **_packed("memory", trace.memory, Holding._fields),
    }


def trace_of(arrays: Mapping[str, Array]) -> Trace:
    """Rebuild the trace from `arrays_of`.

    Raises
    ------
    KeyError, ValueError, TypeError
        If an array is missing or invalid.
    """
    names, written = (json.loads(arrays[key].tobytes()) for key in ("names", "calls"))
    calls = dict(enumerate(call and CallSize(*call) for call in written))
    rows = _unpacked("blocks", arrays, SpanBlock._fields)
    blocks = [SpanBlock(*row)._replace(call=calls[row[-1]]) for row in rows]
    memory = [Holding(*row) for row in _unpacked("memory", arrays, Holding._fields)]
    return Trace(blocks, names, memory)


def _text(value: Any) -> Array:
    """Return plain data as bytes of JSON."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _packed(kind: str, rows: Sequence[tuple[Any, ...]], fields: Sequence[str]) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        f"{kind}.lengths": np.array([len(row[0]) for row in rows], np.int64)
    }
    for i, field in enumerate(fields):
        values = [row[i] for row in rows]
        dtype = np.int64 if field in INTEGERS else np.float64
        flat = [np.atleast_1d(np.asarray(value, dtype=dtype)) for value in values]
        arrays[f"{kind}.{field}"] = np.concatenate(flat) if flat else np.empty(0, dtype)
        arrays[f"{kind}.{field}.arrays"] = np.array([np.ndim(value) > 0 for value in values], bool)
        whole = [np.asarray(value).dtype.kind in "iu" for value in values]
        arrays[f"{kind}.{field}.whole"] = np.array(whole, bool)
    return arrays


def _unpacked(
    kind: str, arrays: Mapping[str, Array], fields: Sequence[str]
) -> list[tuple[Any, ...]]:
    lengths = arrays[f"{kind}.lengths"]
    columns: list[list[Any]] = []
    for field in fields:
        name = f"{kind}.{field}"
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
    """Replace equal arrays by one object, since they are compared by identity."""
    known: dict[bytes, Array] = {}
    return [known.setdefault(array.tobytes(), array) for array in ranks]
