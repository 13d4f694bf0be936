"""Timelines: the window of time, groups of equal ranks, and the chart of their spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.charts.chart import Axis, Chart, Picture
from simdp.reports.charts.names import cut, point_names
from simdp.reports.figures import consecutive
from simdp.reports.rank_rows import slow_ranks
from simdp.results.metrics import num_warm_up
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, SpanBlock, Trace, part

PIXEL = 1 / 1200  # part of the panel that a pixel shows
NUM_STEPS = 2  # steps of one run that are shown
_TRANSFER = ACTIVITIES.index("transfer")
MAX_SAID = 22  # letters of a list of ranks; of a longer one the middle is dropped


def groups(trace: Trace, world_size: int, tolerance: float) -> list[list[int]]:
    """Group ranks with equal spans, by their first ranks.

    ``tolerance`` is the difference of instants that counts as equal [s].
    """
    label = np.zeros(world_size, dtype=np.int64)
    for block in trace.blocks:
        if label.max(initial=0) == world_size - 1:  # each rank is a group by itself
            break
        lanes = block.lane if isinstance(block.lane, np.ndarray) else None
        if len(block.ranks) == world_size and lanes is None:
            if np.ptp(block.start) > tolerance:
                label = _split(label, _level(block.start, tolerance))
            if np.ptp(block.end) > tolerance:
                label = _split(label, _level(block.end, tolerance))
            continue
        for column in (lanes, block.start, block.end):
            if column is not None:
                here = np.zeros(world_size, dtype=np.int64)  # ranks that have no such span
                here[block.ranks] = _level(np.asarray(column, dtype=np.float64), tolerance) + 1
                label = _split(label, here)
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return [np.flatnonzero(number == group).tolist() for group in order]


def _level(values: Floats, tolerance: float) -> Ints:
    """Number values so that equal numbers are at most the tolerance apart."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    run = np.concatenate([[0], np.cumsum(np.diff(ordered) > tolerance)])
    heads = ordered[np.flatnonzero(np.diff(run, prepend=-1))]
    # A chain of neighbours may reach far; it is cut into pieces as long as the tolerance.
    inside = ((ordered - heads[run]) / (tolerance or 1.0)).astype(np.int64)
    inside = np.where(ordered - heads[run] <= tolerance, 0, inside)
    level = np.empty(len(values), dtype=np.int64)
    level[order] = run * (int(inside.max(initial=0)) + 1) + inside
    return level


def _split(label: Ints, other: Ints) -> Ints:
    """Split groups of ranks that differ in another label."""
    _, number = np.unique(label * (int(other.max()) + 1) + other, return_inverse=True)
    labels: Ints = number.reshape(-1).astype(np.int64)
    return labels


def listed(ranks: Iterable[int], dash: str = "–") -> str:
    """Write ranks in short: ``"0–6, 8–31"``; of many the middle is dropped."""
    runs = [
        str(a) if a == b else f"{a}{', ' if b == a + 1 else dash}{b}" for a, b in consecutive(ranks)
    ]
    text = ", ".join(runs)
    if len(text) <= MAX_SAID:
        return text
    shown = len(runs) - 1
    while shown > 1 and len(", ".join([*runs[:shown], "…", runs[-1]])) > MAX_SAID:
        shown -= 1
    return ", ".join([*runs[:shown], "…", runs[-1]])


def row_name(ranks: Sequence[int], slow: Mapping[int, str]) -> str:
    """Name the row of a group; ``slow`` ranks, of `slow_ranks`, have a marker and a factor."""
    factors = dict.fromkeys(slow[rank] for rank in ranks if rank in slow)
    return f"▲ {listed(ranks)}{next(iter(factors))}" if factors else listed(ranks)


def choose(rank_groups: Sequence[Sequence[int]], named: Sequence[int], limit: int) -> list[int]:
    """Choose places of groups: the first, the last, those of named ranks, and some between.

    ``named`` ranks are in order of importance; ``limit`` groups have room.
    """
    if len(rank_groups) <= limit:
        return list(range(len(rank_groups)))
    place = {rank: number for number, ranks in enumerate(rank_groups) for rank in ranks}
    kept = dict.fromkeys([0, len(rank_groups) - 1])
    kept |= dict.fromkeys(place[rank] for rank in named if rank in place)
    chosen = [*kept][:limit]
    rest = [number for number in range(len(rank_groups)) if number not in kept]
    room = limit - len(chosen)
    chosen += [rest[(2 * i + 1) * len(rest) // (2 * room)] for i in range(room)]
    return sorted(chosen)


MAX_ROWS, MAX_HEADING = 16, 90  # rows of all runs; letters of a heading


class TimelineRows(NamedTuple):
    """Rows of one run, one for each group of equal ranks."""

    heading: str  # empty for a single run
    window: TimeWindow
    trace: Trace  # spans of the rows' first ranks
    ranks: list[list[int]]  # of each row
    slow: dict[int, str]  # suffix of each marked rank
    num_groups: int  # rows of all ranks


def read_rows(study: Study) -> list[TimelineRows]:
    """Read the last point; or every point if all have traces."""
    points = study.points
    if len(points) < 2 or any(point.trace is None for point in points):
        return [_rows(points[-1], "", NUM_STEPS, MAX_ROWS)]
    limit = max(MAX_ROWS // len(points), 2)
    names = point_names(points, limit=MAX_HEADING)
    return [
        _rows(point, _heading(point, name), 1, limit)
        for point, name in zip(points, names, strict=True)
    ]


def _heading(point: Result, name: str) -> str:
    seconds = point.metrics.step_time_s or 0.0
    unit, per_second = theme.time_unit(seconds)
    return f"{name} · {seconds * per_second:.4g} {unit} per step"


def _rows(result: Result, heading: str, num_steps: int, limit: int) -> TimelineRows:
    trace, n = result.trace, result.world_size
    assert trace is not None, "draw only studies that fit"
    window = window_of(trace, num_steps)
    inside = window.cut(trace)
    rank_groups = groups(inside, n, PIXEL * window.length)
    slow = slow_ranks(result, inside.blocks)
    ranks = [rank_groups[number] for number in choose(rank_groups, list(slow), limit)]
    shown = inside.of_ranks([group[0] for group in ranks])
    return TimelineRows(heading, window, shown, ranks, slow, len(rank_groups))


@dataclass(frozen=True)
class SpanChart(Chart):
    """Compute and communication lanes of groups of ranks over time, run below run."""

    runs: Sequence[TimelineRows] = field(default=(), kw_only=True)
    has_steps: bool = field(default=True, kw_only=True)  # which a program has not

    @property
    def length(self) -> float:
        """Length of the longest window [s]."""
        return max(run.window.length for run in self.runs)


def timeline(study: Study) -> Picture | None:
    """Show compute and communication of each group of ranks."""
    trace = study.points[-1].trace if study.points else None
    if trace is None or not any(block.step >= 0 for block in trace.blocks):
        return None
    result, runs = study.points[-1], read_rows(study)
    program = result.scenario.get("program")
    unit, _ = theme.time_unit(max(run.window.length for run in runs))
    since = "" if program else _since(runs)
    is_alone = sum(len(run.ranks) + bool(run.heading) for run in runs) <= 2
    chart = SpanChart(
        "Timeline",
        Axis(f"Time{since} [{unit}]{_left_out(runs)}", unit=unit),
        Axis("Rank [number]" if is_alone else "Rank [compute over comm]"),
        runs=runs,
        has_steps=program is None,
    )
    title = f"Timeline of {program}" if program else _title(study, runs)
    return Picture(title, about(study) if len(runs) > 1 else about_point(result), [chart])


def _since(runs: Sequence[TimelineRows]) -> str:
    window = runs[-1].window
    if len(runs) == 1 and window.apart:
        unit, per_second = theme.time_unit(window.begin)
        return f" since {window.begin * per_second:.4g} {unit} of the run"
    if len({run.window.steps[0] for run in runs}) > 1 or window.apart:
        return " since the start of what is shown"
    return f" since the start of step {window.steps[0] + 1}"


def _title(study: Study, runs: Sequence[TimelineRows]) -> str:
    windows = [run.window for run in runs]
    by = ""
    if len(runs) > 1:
        keys = dict.fromkeys(key for point in study.points for key in point.set)
        by = " by " + cut(", ".join(key.removesuffix(".kind").split(".")[-1] for key in keys))
    if windows[-1].apart:
        return f"Timeline{by}, each rank in its own step"
    first, last = windows[-1].steps[0] + 1, windows[-1].steps[-1] + 1
    if len({window.steps[-1] for window in windows}) > 1:
        return f"Timeline of the last step{by}"
    return f"Timeline of step{f' {last}' if first == last else f's {first}–{last}'}{by}"


def _left_out(runs: Sequence[TimelineRows]) -> str:
    """Count the rows that are not shown, as a line below the axis; empty if none."""
    shown, every = sum(len(run.ranks) for run in runs), sum(run.num_groups for run in runs)
    if shown == every:
        return ""
    return f"\n{shown} of {every} groups of ranks are shown, the slowest among them"


SPARSE = 2.0  # the last steps are apart if they take so many times as long as any rank's own


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
