"""Bars of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.arrays import Bools, Floats, Ints
from simdp.reports import theme
from simdp.reports.rank_rows import changes
from simdp.results.metrics import num_warm_up
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, SpanBlock, Trace, part

PADDING = 2.0  # free space around a name, both sides together [points]
# a pass is shown in blocks if at least so many have room for their names, over at least this share
# of it
MIN_BLOCKS, MIN_SHARE = 3, 0.6


def fits(text: str, width: float) -> bool:
    """Return whether a bar of this width [points] has room for a name."""
    return theme.text_width(text, theme.TINY_SIZE) + PADDING <= width


def shorter(name: str) -> list[str]:
    """Write a bar's name in ever fewer letters.

    ``all_reduce bucket 3`` becomes ``b3``; ``broadcast buffers 0`` ``buffers``, ``all_gather
    layer1.0.bn1 statistics`` ``bn1``, and ``step 7`` ``7``.
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
    """Group the layers of a pass into the smallest blocks with readable names.

    ``layers`` are names in the order of one rank's pass, such as ``layer1.0.conv1``; ``start`` and
    ``end`` of shape `(num_layers,)` are the edges of their bars [points]. Returns the name by
    layer, such as ``layer1.0``, ``""`` without room; empty if most of the pass would have no name.
    """
    for gather in (_block, lambda layer: layer.partition(".")[0]):
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


NUM_STEPS = 2  # steps of one run that are shown
SPARSE = 2.0  # the last steps are apart if they take so many times as long as any rank's own
_TRANSFER = ACTIVITIES.index("transfer")


class TimeWindow(NamedTuple):
    """The shown time."""

    begin: float  # [s]
    end: float  # [s]
    steps: range  # the last ones, shown whole
    apart: bool  # whether ranks run these at such different times that the window is a common time

    @property
    def length(self) -> float:
        """Length [s]."""
        return self.end - self.begin

    def cut(self, trace: Trace) -> Trace:
        """Keep the spans with bars: no single transfers, and none outside."""
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
    """Choose the window of a run of at least one step: the last steady steps.

    The first of several steps is warm-up, as for the metrics. If ranks do not wait for each other,
    their last steps are far apart; then the window ends when the first rank is done, and is as long
    as the slowest one's last steps.
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
    learns = [
        block
        for block in drawn
        if block.step >= 0 and not isinstance(block.lane, np.ndarray) and block.lane == COMPUTE_LANE
    ]
    starts, ends = _extremes(learns, size)
    end = float(ends[ends > -np.inf].min())  # ranks without samples are done at once
    begin = max(float(starts.min()), end - own)
    return TimeWindow(begin, end, steps, True)


def _extremes(blocks: list[SpanBlock], size: int) -> tuple[Floats, Floats]:
    """Compute first start and last end of each rank [s]; infinite without a span."""
    starts, ends = np.full(size, np.inf), np.full(size, -np.inf)
    for block in blocks:
        np.minimum.at(starts, block.ranks, block.start)
        np.maximum.at(ends, block.ranks, block.end)
    return starts, ends


Names = NDArray[np.object_]
PIXEL = 1 / 1200  # part of the panel that a pixel shows
# Narrower neighbouring bars with narrower gaps are drawn together, as their share of the time in
# bins of this width [pixels]
THIN, BIN = 3.0, 4.0
WIDE = 2.0  # least width of a collective with a name of its own [points]
LEVELS = 8  # shades of a band
MIN_IN_BAND = 3  # least number of bars in a band


class Bars(NamedTuple):
    """Bars in columns of equal length."""

    rank: Ints
    lane: Ints
    activity: Ints
    name: Names  # written into the bar if there is room
    start: Floats  # since the begin of the window [s]
    end: Floats  # since the begin of the window [s]
    fill: Floats  # busy share of the bar's time: 1, or less in a band


class Band(NamedTuple):
    """Many narrow bars of a lane, with their count."""

    rank: int
    lane: int
    start: float  # since the begin of the window [s]
    end: float  # since the begin of the window [s]
    text: str  # ``"145 × all_reduce"``


def bars_of(
    trace: Trace, window: TimeWindow, length: float, room: float
) -> tuple[Bars, list[Band]]:
    """Make bars and bands of a window's spans.

    The panel is ``length`` long in time [s] and ``room`` wide [points].
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
    new = changes(rank, lane, step, activity, name)
    new[1:] |= start[1:] - end[:-1] > pixel / 2
    # Collectives one behind the other are counted, so that only wide ones are joined by name.
    new[1:] |= (lane[1:] != COMPUTE_LANE) & (trace.name[1:] != trace.name[:-1])
    heads = np.flatnonzero(new)
    end = np.maximum.reduceat(end, heads)
    full = np.ones(len(heads))
    keys = rank[heads], lane[heads], activity[heads], name[heads]
    bars = Bars(*keys, start[heads], end, full)
    return _with_bands(bars, trace.name[heads], trace.names, pixel)


def _names(trace: Trace, start: Floats, end: Floats, per_second: float, apart: bool) -> Names:
    """Name spans: wide collectives, blocks of layers, others by activity.

    If ranks are in different steps, forward has the step's number. ``per_second`` is the width of a
    second [points].
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


def _with_bands(bars: Bars, code: Ints, names: list[str], pixel: float) -> tuple[Bars, list[Band]]:
    """Replace runs of narrow bars by bands; a single narrow bar is widened to a pixel.

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
    return Bars(*(np.concatenate(column) for column in zip(*parts, strict=True))), found


def _part(bars: Bars, which: Bools) -> Bars:
    return Bars._make(column[which] for column in bars)


def _runs(bars: Bars, pixel: float) -> Ints:
    """Number runs of narrow bars with narrow gaps; every wide bar is a run."""
    thin: Bools = bars.end - bars.start < THIN * pixel
    new = changes(bars.rank, bars.lane)
    new[1:] |= ~thin[1:] | ~thin[:-1] | (bars.start[1:] - bars.end[:-1] > THIN * pixel)
    return np.cumsum(new) - 1


def _said(activity: Ints, names: list[str]) -> str:
    """Count the bars of a band by name; waits belong to collectives."""
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
    new = changes(*cells[:2], fill)
    new[1:] |= cells[2, 1:] != cells[2, :-1] + 1
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(fill)) - 1
    mine = heads[place[firsts]]
    name = np.full(len(firsts), "", dtype=object)
    keys = bars.rank[mine], bars.lane[mine], cells[1, firsts], name
    return Bars(*keys, start[firsts], end[lasts], fill[firsts])
