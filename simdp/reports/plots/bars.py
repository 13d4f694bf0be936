"""Bars of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Bools, Floats, Ints
from simdp.reports import theme
from simdp.results.metrics import num_warm_up
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, SpanBlock, Trace, part

# Bar names ----------------------------------------------------------------------------------------

PADDING = 2.0
"""What stays free around a name, both sides together [points]."""

MIN_BLOCKS, MIN_SHARE = 3, 0.6
"""A pass is shown in blocks if so many of them have room for their names, over so much of it."""


def fits(text: str, width: float) -> bool:
    """Tell whether there is room for a name in a bar as wide as this [points]."""
    return theme.text_width(text, theme.TINY_SIZE) + PADDING <= width


def shorter(name: str) -> list[str]:
    """Write a bar's name in ever fewer letters.

    ``all_reduce bucket 3`` is at last ``b3``; ``broadcast buffers 0`` is ``buffers``, and
    ``all_gather layer1.0.bn1 statistics`` is ``bn1``; ``step 7`` is ``7``.
    """
    if name in ("forward", "backward"):
        return [name, {"forward": "fwd", "backward": "bwd"}[name]]
    words = name.split()
    if words[0] == "step":
        return [name, words[-1]]
    if len(words) < 3:  # as in "used parameters", which says it all
        return [name]
    if words[1] == "bucket":  # and, behind its number, which part of it
        rest = "".join(f" {word}" for word in words[3:] if len(word) == 1)
        return [name, " ".join(words[1:3]) + rest, f"b{words[2]}{rest}"]
    _, what, last = words[0], words[-2], words[-1]
    tail = f"{what} {last}"
    if what == "unit":
        return [name, tail, f"u{last}"]
    return [name, tail, what, what.rpartition(".")[2]]


def blocks(layers: Sequence[str], start: Floats, end: Floats) -> dict[str, str]:
    """Gather the layers of a pass into blocks whose names can be read, as small as they may be.

    Parameters
    ----------
    layers : sequence of str
        Names in the order of one rank's pass, such as ``layer1.0.conv1``.
    start, end : ndarray, shape `(num_layers,)`
        Where each one's bar begins and ends [points].

    Returns
    -------
    dict of str to str
        What stands in a layer's bar, such as ``layer1.0`` or ``layer1``; ``""`` where it has no
        room. Empty if most of the pass would have no name.
    """
    for gather in (_block, _stage):
        paths = [gather(layer) for layer in layers]
        heads = [i for i, path in enumerate(paths) if not i or path != paths[i - 1]]
        if not heads or len(heads) > len(set(paths)):  # a block in several pieces tells nothing
            continue
        tails = [i - 1 for i in (*heads[1:], len(layers))]
        width = end[tails] - start[heads]
        named = {paths[i]: ".".join(paths[i].split(".")[-2:]) for i in heads}
        read = np.array([fits(named[paths[i]], w) for i, w in zip(heads, width, strict=True)])
        if read.sum() >= MIN_BLOCKS and width[read].sum() >= MIN_SHARE * width.sum():
            kept = {paths[i] for i, shown in zip(heads, read, strict=True) if shown}
            return {
                layer: named[path] if path in kept else ""
                for layer, path in zip(layers, paths, strict=True)
            }
    return {}


def _block(layer: str) -> str:
    """Cut a layer's path behind its first number, else before its last part."""
    parts = layer.split(".")
    for place, name in enumerate(parts[1:], 2):
        if name.isdigit():
            return ".".join(parts[:place])
    return ".".join(parts[:-1]) or layer


def _stage(layer: str) -> str:
    return layer.partition(".")[0]


# Window -------------------------------------------------------------------------------------------

NUM_STEPS = 2
"""Steps that are shown of one run."""

SPARSE = 2.0
"""Last steps that take so many times as long as any rank's own are apart: most would be empty."""

_TRANSFER = ACTIVITIES.index("transfer")


class TimeWindow(NamedTuple):
    """The time that is shown.

    Attributes
    ----------
    begin, end : float
        Instants [s].
    steps : range
        The last ones, which are shown whole.
    apart : bool
        Whether ranks go through these at times so different that not they are shown, but what all
        ranks do at the same time.
    """

    begin: float
    end: float
    steps: range
    apart: bool

    @property
    def length(self) -> float:
        """How long it is [s]."""
        return self.end - self.begin

    def cut(self, trace: Trace) -> Trace:
        """Keep the spans that get bars: not single transfers, and not what lies outside."""
        blocks = []
        for block in trace.blocks:
            if block.activity == _TRANSFER or (not self.apart and block.step < self.steps[0]):
                continue
            inside = (block.end > self.begin) & (block.start < self.end)
            if not self.apart:
                inside |= block.start == block.end  # which ends a step, or begins it
            if inside.any():
                blocks.append(part(block, np.flatnonzero(inside)))
        return Trace(blocks, trace.names)


def window_of(trace: Trace, num_steps: int = NUM_STEPS) -> TimeWindow:
    """Choose what to show of a run of at least one step: the last ones that are steady.

    The first of several steps is warm-up, as for the metrics. Where ranks do not wait for each
    other, the last steps lie far apart on the clock. Then it is the time before the first rank is
    done, as long as the slowest one's last steps.
    """
    drawn = [block for block in trace.blocks if block.activity != _TRANSFER]
    last = max(block.step for block in drawn)
    first = max(num_warm_up(last + 1), last - num_steps + 1)
    steps = range(first, last + 1)
    shown = [block for block in drawn if block.step >= first]
    size = max(int(block.ranks.max()) for block in drawn) + 1
    starts, ends = _extremes(shown, size)
    begin, end = float(starts.min()), float(ends.max())
    own = float((ends - starts).max())
    if not first or end - begin <= SPARSE * own:
        return TimeWindow(begin, end if end > begin else begin + 1e-9, steps, False)
    learns = [block for block in drawn if block.step >= 0 and _is_compute(block)]
    starts, ends = _extremes(learns, size)
    end = float(ends[ends > -np.inf].min())  # ranks without samples are done at once
    begin = max(float(starts.min()), end - own)
    return TimeWindow(begin, end, steps, True)


def _is_compute(block: SpanBlock) -> bool:
    return not isinstance(block.lane, np.ndarray) and block.lane == COMPUTE_LANE


def _extremes(blocks: list[SpanBlock], size: int) -> tuple[Floats, Floats]:
    """First start and last end of each rank [s]; infinite of ranks without a span."""
    starts, ends = np.full(size, np.inf), np.full(size, -np.inf)
    for block in blocks:
        np.minimum.at(starts, block.ranks, block.start)
        np.maximum.at(ends, block.ranks, block.end)
    return starts, ends


Names = NDArray[np.object_]

PIXEL = 1 / 1200
"""Part of the panel that a pixel shows."""

THIN, BIN = 3.0, 4.0
"""Bars side by side that are narrower, with gaps that are narrower, are shown together, by the part
of the time that they take in bins as wide as this [pixels]."""

WIDE = 2.0
"""A collective that is wider may have a name of its own [points]."""

LEVELS = 8
"""Shades of a band."""

MIN_IN_BAND = 3
"""Bars that make a band; fewer are drawn as they are."""


class Bars(NamedTuple):
    """What is drawn, in columns of equal length.

    Attributes
    ----------
    rank, lane, activity : ndarray, int64
        As in `Trace`.
    name : ndarray of str
        What is written into the bar, if there is room.
    start, end : ndarray, float64
        Since the begin of the window [s].
    fill : ndarray, float64
        Part of the bar's time that it stands for: 1, or less in a band.
    """

    rank: Ints
    lane: Ints
    activity: Ints
    name: Names
    start: Floats
    end: Floats
    fill: Floats


class Band(NamedTuple):
    """Many narrow bars of a lane, which are counted.

    Attributes
    ----------
    rank, lane : int
        As in `Trace`.
    start, end : float
        Since the begin of the window [s].
    text : str
        How many, and of what: ``"145 × all_reduce"``.
    """

    rank: int
    lane: int
    start: float
    end: float
    text: str


def bars_of(
    trace: Trace, window: TimeWindow, length: float, room: float
) -> tuple[Bars, list[Band]]:
    """Make bars of spans.

    Parameters
    ----------
    trace : Trace
        What the window holds, of the ranks that are shown.
    window : Window
        What leaves it is cut off.
    length, room : float
        Of the panel, in time [s] and on paper [points].
    """
    pixel = PIXEL * length
    if not len(trace):
        none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Bars(none, none, none, never.astype(object), never, never, never), []
    rank, lane, step, activity = trace.rank, trace.lane, trace.step, trace.activity
    start = np.maximum(trace.start, window.begin) - window.begin
    end = np.minimum(trace.end, window.end) - window.begin
    name = _names(trace, start, end, room / length, window.apart)
    # Ordered by rank, lane and start, so that a bar is a run of equal keys without a gap.
    keys = np.stack([rank, lane, step, activity])
    new = np.ones(len(rank), dtype=bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0) | (name[1:] != name[:-1])
    new[1:] |= start[1:] - end[:-1] > pixel / 2
    # Collectives one behind the other are counted, so that only wide ones are joined by name.
    new[1:] |= (lane[1:] != COMPUTE_LANE) & (trace.name[1:] != trace.name[:-1])
    heads = np.flatnonzero(new)
    end = np.maximum.reduceat(end, heads)
    bars = Bars(
        rank[heads],
        lane[heads],
        activity[heads],
        name[heads],
        start[heads],
        end,
        np.ones(len(heads)),
    )
    return _with_bands(bars, trace.name[heads], trace.names, pixel)


def _names(trace: Trace, start: Floats, end: Floats, per_second: float, apart: bool) -> Names:
    """Name spans: collectives that are wide enough, blocks of layers, all others by activity.

    Where ranks are in different steps, forward says which one begins. ``per_second`` is how long a
    second is [points].
    """
    rank, step, activity = trace.rank, trace.step, trace.activity
    own = np.array([*trace.names, ""], dtype=object)[trace.name]
    wide = (trace.lane != COMPUTE_LANE) & ((end - start) * per_second > WIDE)
    name = np.where(wide, own, np.array(ACTIVITIES, dtype=object)[activity])
    if apart:
        mine = activity == ACTIVITIES.index("forward")
        name[mine] = [f"step {number + 1}" for number in step[mine].tolist()]
        return name
    for code in (ACTIVITIES.index("forward"), ACTIVITIES.index("backward")):
        mine = activity == code
        one = mine & (rank == rank[0]) & (step == step.max())  # its blocks are everyone's
        found = blocks(own[one].tolist(), start[one] * per_second, end[one] * per_second)
        if found:
            name[mine] = [found.get(layer, "") for layer in own[mine]]
    return name


# Bands -------------------------------------------------------------------------------------------


def _with_bands(bars: Bars, code: Ints, names: list[str], pixel: float) -> tuple[Bars, list[Band]]:
    """Replace runs of narrow bars by bands; a narrow bar that stands alone is as wide as a pixel.

    ``code`` are the places of the bars' names in ``names``.
    """
    run = _runs(bars, pixel)
    size = np.bincount(run)
    banded = size[run] >= MIN_IN_BAND
    alone = ~banded & (bars.end > bars.start)
    width = bars.end - bars.start
    wide = bars._replace(
        end=np.where(width < pixel, bars.start + pixel, bars.end),
        fill=np.minimum(1.0, np.maximum(width / pixel, 1 / LEVELS)),
    )
    kept = _part(wide, alone)
    if not banded.any():
        return kept, []
    parts, found = [kept], []
    inside = _part(bars, banded)
    parts.append(_binned(inside, run[banded], pixel))
    for number in np.unique(run[banded]):
        mine = np.flatnonzero(run == number)
        said = _said(bars.activity[mine], [names[i] for i in code[mine]])
        if bars.lane[mine[0]] != COMPUTE_LANE:
            first, last = float(bars.start[mine[0]]), float(bars.end[mine].max())
            found.append(Band(int(bars.rank[mine[0]]), int(bars.lane[mine[0]]), first, last, said))
    columns = zip(*parts, strict=True)
    return Bars(*(np.concatenate(column) for column in columns)), found


def _part(bars: Bars, which: Bools) -> Bars:
    return Bars._make(column[which] for column in bars)


def _runs(bars: Bars, pixel: float) -> Ints:
    """Number runs of narrow bars with narrow gaps; every wide bar is a run of its own."""
    thin: Bools = bars.end - bars.start < THIN * pixel
    new = np.ones(len(thin), dtype=bool)
    new[1:] = (bars.rank[1:] != bars.rank[:-1]) | (bars.lane[1:] != bars.lane[:-1])
    new[1:] |= ~thin[1:] | ~thin[:-1] | (bars.start[1:] - bars.end[:-1] > THIN * pixel)
    return np.cumsum(new) - 1


def _said(activity: Ints, names: list[str]) -> str:
    """Count what is in a band; waiting belongs to what is waited for."""
    comm = ACTIVITIES.index("comm")
    named = [name for name, code in zip(names, activity, strict=True) if code == comm] or names
    kinds = list(dict.fromkeys(name.partition(" ")[0] for name in named))
    return f"{len(named)} × {kinds[0] if len(kinds) == 1 and kinds[0] else 'comm'}"


def _binned(bars: Bars, run: Ints, pixel: float) -> Bars:
    """Sum the time of each activity in bins of a run; neighbours of one shade become one bar."""
    width = BIN * pixel
    low = (bars.start / width + 1e-9).astype(np.int64)
    edge = (low + 1) * width
    # A bar is narrower than a bin, so that it lies in one or in two.
    first = np.minimum(bars.end, edge) - bars.start
    second = np.maximum(bars.end - edge, 0.0)
    places = np.concatenate([np.stack([run, bars.activity, low]), [run, bars.activity, low + 1]], 1)
    taken = np.concatenate([first, second])
    places, taken = places[:, taken > 0], taken[taken > 0]
    cells, number = np.unique(places, axis=1, return_inverse=True)
    total = np.bincount(number.reshape(-1), taken, minlength=cells.shape[1])
    known, heads = np.unique(run, return_index=True)
    begin, finish = bars.start[heads], np.maximum.reduceat(bars.end, heads)
    place = np.searchsorted(known, cells[0])
    start = np.maximum(cells[2] * width, begin[place])
    end = np.minimum((cells[2] + 1) * width, finish[place])
    share = total / np.maximum(end - start, 1e-300)
    fill = np.clip(np.ceil(share * LEVELS - 1e-6), 1, LEVELS) / LEVELS
    # Ordered by run, activity and bin: a bar is a run of one shade without a gap.
    new = np.ones(len(fill), dtype=bool)
    new[1:] = (cells[:2, 1:] != cells[:2, :-1]).any(axis=0) | (fill[1:] != fill[:-1])
    new[1:] |= cells[2, 1:] != cells[2, :-1] + 1
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(fill)) - 1
    mine = heads[place[firsts]]
    return Bars(
        bars.rank[mine],
        bars.lane[mine],
        cells[1, firsts],
        np.full(len(firsts), "", dtype=object),
        start[firsts],
        end[lasts],
        fill[firsts],
    )
