"""Plots of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from simdp.arrays import Floats, grouped
from simdp.cluster import Cluster
from simdp.reports import theme
from simdp.reports.captions import about_point
from simdp.reports.plots.labels import PALE, Plot, entitle, legend_above, note, patch
from simdp.reports.plots.timeline import choose, listed
from simdp.results.memory import MEMORY_PARTS, MemoryUsage, usage
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, Trace

LEAST_SHARE = 0.005  # least share of the highest total that a part of its own has
FAR = 2.5  # multiple of the peak above which a capacity is written, not drawn


def device_ranks(result: Result, rank: int) -> list[int]:
    """List the ranks on a rank's device, including itself."""
    k = int(result.scenario["cluster"].get("ranks_per_device", 1))
    first = rank // k * k
    return list(range(first, min(first + k, result.world_size)))


def capacity(result: Result, rank: int) -> float:
    """Return the memory of a rank's device [bytes]."""
    return Cluster.model_validate(result.scenario["cluster"]).devices()[rank].memory


def mark_capacity(ax: Axes, height: float, right: float, text: str) -> None:
    """Draw a capacity as a dashed line, named above its right end."""
    ax.axhline(height, color=theme.STRAGGLER, linestyle="--", linewidth=theme.LINE_WIDTH)
    look = {"ha": "right", "va": "bottom", "color": theme.STRAGGLER}
    note(ax, f"capacity {text}", (right, height), (-4, 3), **look)


def shown_parts(kept: Floats) -> list[int]:
    """Choose the visible parts of memory, as places in `MEMORY_PARTS`.

    ``kept`` has the shape `(..., len(MEMORY_PARTS))` [bytes].
    """
    flat = kept.reshape(-1, len(MEMORY_PARTS))
    largest, highest = flat.max(axis=0), flat.sum(axis=1).max()
    return [int(part) for part in np.flatnonzero(largest > LEAST_SHARE * highest)]


def rest(kept: Floats, parts: Sequence[int]) -> Floats:
    """Sum the other parts, shaped as ``kept`` without its last axis."""
    others = [part for part in range(len(MEMORY_PARTS)) if part not in parts]
    found: Floats = kept[..., others].sum(axis=-1)
    return found


def _layers(ax: Axes, kept: Floats) -> list[tuple[Floats, theme.FillStyle]]:
    """List the visible parts and the rest with their looks, and draw a legend above the panel."""
    parts = shown_parts(kept)
    names = [MEMORY_PARTS[part] for part in parts]
    fills = [theme.PART_FILLS[name] for name in names]
    legend_above(
        ax, [patch(n.replace("_", " "), fill) for n, fill in zip(names, fills, strict=True)]
    )
    others = rest(kept, parts), theme.FillStyle(theme.FAINT, "", "none", theme.INK)
    return [*((kept[:, part], fill) for part, fill in zip(parts, fills, strict=True)), others]


MAX_ROWS = 16  # bars; of more groups of ranks some are dropped
BAR_HEIGHT = 0.62  # in rows
LEAST_DIFFERENCE = 0.01  # least relative difference of peaks


class MemoryPerRank(Plot[Study]):
    """Peak memory in parts, a bar per group of ranks with equal peaks."""

    kind = "memory_per_rank"
    reads = Study
    needs = "ranks with different peaks, and a trace with changes of memory"

    def fits(self, study: Study) -> bool:
        result = study.points[-1] if study.points else None
        if result is None or result.trace is None or not result.trace.memory:
            return False
        peaks = result.metrics.peak_memory_bytes
        return bool(min(peaks) < (1 - LEAST_DIFFERENCE) * max(peaks))

    def num_rows(self, study: Study) -> int:
        return min(len(_groups(study.points[-1])), MAX_ROWS)

    def draw(self, study: Study, *axes: Axes) -> None:
        (ax,) = axes
        result = study.points[-1]
        shown, kept = _peaks(result)
        total = kept.sum(axis=1)
        room = max(capacity(result, rank) for rank, *_ in shown)
        is_near = room <= FAR * total.max()
        most = max(total.max(), room if is_near else 0.0)
        unit, scale = theme.nbytes_unit(most)
        left, rows = np.zeros(len(shown)), np.arange(len(shown))
        for width, fill in _layers(ax, kept / scale):
            look: dict[str, Any] = {"ec": fill.hatch_color, "hatch": fill.hatch, "linewidth": 0}
            ax.barh(rows, width, BAR_HEIGHT, left, color=fill.color, **look)
            left = left + width
        for row, value in enumerate(total / scale):
            note(ax, f"{value:.4g}", (value, row), (4, 0), va="center")
        if is_near:
            ax.axvline(room / scale, color=theme.STRAGGLER, linestyle="--")
        ax.set_xlim(0, 1.1 * (most / scale))
        ax.set_ylim(len(shown) - 0.45, -0.55)
        ax.yaxis.set_major_locator(FixedLocator(list(range(len(shown)))))
        ax.set_yticklabels([listed(r) + (f"\n{len(r)} ranks" if len(r) > 2 else "") for r in shown])
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        size_unit, of = theme.nbytes_unit(room)
        drawn = "dashed line: " if is_near else ""
        label = f"Memory at the peak [{unit}], {drawn}capacity {room / of:.4g} {size_unit}"
        if len(shown) < (count := len(_groups(result))):
            label += f"\n{len(shown)} of {count} groups of ranks are shown, the fullest among them"
        ax.set_xlabel(label)
        ax.set_ylabel("Rank [number]")
        entitle(ax, "Memory of every rank at its peak", about_point(result), rows=1)


def _peaks(result: Result) -> tuple[list[list[int]], Floats]:
    """Choose the groups of ranks to show, and read their parts at the peak [bytes]."""
    assert result.trace is not None, "draw only studies that fit"
    peaks = np.array(result.metrics.peak_memory_bytes)
    every = _groups(result)
    shown = [every[i] for i in choose(every, [int(peaks.argmax()), int(peaks.argmin())], MAX_ROWS)]
    kept = np.zeros((len(shown), len(MEMORY_PARTS)))
    for row, (rank, *_) in enumerate(shown):
        found = usage(result.trace.memory, [rank])
        kept[row] = found.kept[found.peak()]
    return shown, kept


def _groups(result: Result) -> list[list[int]]:
    """Group ranks with equal peaks, by their first ranks."""
    peaks = enumerate(result.metrics.peak_memory_bytes)
    return list(grouped((peak, rank) for rank, peak in peaks).values())


PHASES = ("forward", "backward", "update")  # activities that are named above the areas
PHASE_SHARE = 0.05  # least share of the step of a named phase


class MemoryCurves(NamedTuple):
    """Memory of a device over a step."""

    ranks: list[int]  # on the device
    step: int
    begin: float  # of the step, on these ranks [s]
    end: float  # [s]
    at: Floats  # instants, with the step's begin and end, shape `(num_changes,)` [s]
    kept: Floats  # memory from then on, shape `(num_changes, len(MEMORY_PARTS))` [bytes]
    peak: int  # place of the peak in these


class MemoryOverTime(Plot[Study]):
    """Memory in parts over a step, of the fullest device."""

    kind = "memory"
    reads = Study
    needs = "a trace with changes of memory, which runs of more than 2,000 ranks lack"

    def fits(self, study: Study) -> bool:
        trace = study.points[-1].trace if study.points else None
        return trace is not None and any(held.step >= 0 for held in trace.memory)

    def draw(self, study: Study, *axes: Axes) -> None:
        (ax,) = axes
        result = study.points[-1]
        shown = fullest_step(result)
        unit, per_second = theme.time_unit(shown.end - shown.begin)
        times = (shown.at - shown.begin) * per_second
        total = shown.kept.sum(axis=1)
        room = capacity(result, shown.ranks[0])
        is_near = room <= FAR * total.max()
        most = max(total.max(), room if is_near else 0.0)
        size_unit, scale = theme.nbytes_unit(most)
        _draw_areas(ax, times, shown.kept / scale)
        ax.set_xlim(0, times[-1])
        ax.set_ylim(0, 1.28 * (most / scale))
        of = ""
        if is_near:
            mark_capacity(ax, room / scale, times[-1], f"{room / scale:.4g} {size_unit}")
        else:
            room_unit, in_unit = theme.nbytes_unit(room)
            of = f" of {room / in_unit:.4g} {room_unit}"
        _mark_peak(ax, result, shown, times, scale, size_unit, of)
        _name_phases(ax, result, shown, per_second)
        ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        ax.set_xlabel(f"Time since the start of step {shown.step + 1} [{unit}]")
        ax.set_ylabel(f"Device memory [{size_unit}]")
        several = len(shown.ranks) > 1
        ranks = f"{'ranks' if several else 'rank'} {shown.ranks[0]}"
        ranks += f"–{shown.ranks[-1]}" * several
        entitle(ax, f"Memory of {ranks}, the fullest", about_point(result), rows=1)


def fullest_step(result: Result) -> MemoryCurves:
    """Choose the fullest device, and its fullest step."""
    trace = result.trace
    assert trace is not None, "draw only studies that fit"
    peaks = np.array(result.metrics.peak_memory_bytes, dtype=float)
    firsts = [r for r in range(result.world_size) if device_ranks(result, r)[0] == r]
    fullest = max(firsts, key=lambda first: peaks[device_ranks(result, first)].sum())
    ranks = device_ranks(result, fullest)
    found = usage(trace.memory, ranks)
    step = int(found.step[_peak_of_steps(found)])
    begin, end = _bounds(trace.of_ranks(ranks), step)
    mine = np.flatnonzero(found.step == step)
    before = found.kept[mine[0] - 1] if mine[0] else np.zeros(len(MEMORY_PARTS))
    at = np.concatenate([[begin], found.at[mine], [end]])
    kept = np.concatenate([[before], found.kept[mine], found.kept[mine[-1:]]])
    peak = int(kept.sum(axis=1).argmax())
    return MemoryCurves(ranks, step, begin, max(end, float(at[-2])), at, kept, peak)


def _peak_of_steps(found: MemoryUsage) -> int:
    """Find the peak of the steps, without the setup."""
    steps = MemoryUsage(found.step, found.at, np.where(found.step[:, None] >= 0, found.kept, 0.0))
    return steps.peak()


def _bounds(trace: Trace, step: int) -> tuple[float, float]:
    """Compute begin and end of a step on the ranks of a trace [s]."""
    mine = trace.step == step
    begin = float(trace.end[trace.step < step].max(initial=0.0))
    end = float(trace.end[mine].max(initial=begin))
    return begin, end if end > begin else begin + 1e-9


def _draw_areas(ax: Axes, times: Floats, kept: Floats) -> None:
    low = np.zeros(len(times))
    for height, fill in _layers(ax, kept):
        ax.fill_between(times, low, low + height, step="post", facecolor=fill.color, linewidth=0)
        if fill.hatch:
            look: dict[str, Any] = {"ec": fill.hatch_color, "hatch": fill.hatch, "linewidth": 0}
            ax.fill_between(times, low, low + height, step="post", facecolor="none", **look)
        low = low + height
    ax.plot(times, low, drawstyle="steps-post", color=theme.INK, linewidth=theme.THIN_WIDTH)


def _mark_peak(
    ax: Axes, result: Result, shown: MemoryCurves, times: Floats, scale: float, unit: str, of: str
) -> None:
    """Mark the peak with its size, activity and largest parts."""
    kept = shown.kept[shown.peak]
    height, x = kept.sum() / scale, times[shown.peak]
    largest = np.argsort(-kept, kind="stable")[:3]
    made = ", ".join(
        f"{MEMORY_PARTS[part].replace('_', ' ')} {kept[part] / kept.sum():.0%}"
        for part in largest
        if kept[part] > 0
    )
    where = doing_at(result, shown)
    ax.plot(x, height, marker="v", color=theme.INK, clip_on=False, zorder=5)
    on_the_left = x < times[-1] / 2
    by, side = ((4, 7), "left") if on_the_left else ((-4, 7), "right")
    text = f"peak {height:.4g} {unit}{of}{where}\n{made}"
    note(ax, text, (x, height), by, ha=side, va="bottom", zorder=6)


def doing_at(result: Result, shown: MemoryCurves) -> str:
    """Write the device's activity at the peak."""
    assert result.trace is not None
    trace, at = result.trace.of_ranks(shown.ranks), shown.at[shown.peak]
    lane = trace.lane == COMPUTE_LANE
    during = np.flatnonzero(lane & (trace.start <= at) & (at < trace.end))
    if not len(during):
        return ""
    number = during[0]
    activity, name = ACTIVITIES[trace.activity[number]], trace.names[trace.name[number]]
    return f", in {activity}" + (f" of {name}" if activity in ("forward", "backward") else "")


def _phases(trace: Trace, step: int) -> list[tuple[str, float, float]]:
    """Find each phase of a rank's step: name, begin and end [s].

    Recomputed forward belongs to backward: only the model's first call begins another micro-step.
    """
    mine = np.flatnonzero((trace.step == step) & (trace.lane == COMPUTE_LANE))
    runs: list[tuple[str, float, float]] = []
    first = None
    for number in mine:
        name = ACTIVITIES[trace.activity[number]]
        if name not in PHASES:
            continue
        first = trace.name[number] if first is None else first
        before = runs[-1][0] if runs else None
        if before == "backward" and name == "forward" and trace.name[number] != first:
            name = before
        begin = runs.pop()[1] if name == before else float(trace.start[number])
        runs.append((name, begin, float(trace.end[number])))
    return runs


def _name_phases(ax: Axes, result: Result, shown: MemoryCurves, per_second: float) -> None:
    """Name the phases of the step along the upper edge, and mark where they begin."""
    assert result.trace is not None
    for name, start, end in _phases(result.trace.of_ranks(shown.ranks[:1]), shown.step):
        if end - start < PHASE_SHARE * (shown.end - shown.begin):
            continue
        left = (start - shown.begin) * per_second
        ax.axvline(left, color=theme.MUTED, linewidth=0.8, linestyle=":")
        at = (start + end) / 2 * per_second - shown.begin * per_second, 0.985
        ax.annotate(name, at, xycoords=("data", "axes fraction"), ha="center", va="top", **PALE)
