"""Charts of memory: over a step, and of every rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints, grouped
from simdp.cluster import Cluster
from simdp.reports import theme
from simdp.reports.captions import about_point
from simdp.reports.charts.chart import Axis, Chart, Note, Picture, ReferenceLine, Series, Stretch
from simdp.reports.charts.timeline import choose, listed
from simdp.reports.figures import nbytes
from simdp.results.memory import MEMORY_PARTS, usage
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, Trace

LEAST_SHARE = 0.005  # least share of the highest total that a part of its own has
FAR = 2.5  # multiple of the peak above which a capacity is written, not drawn
MOST_INSTANTS = 1500  # instants of the areas; of more the fullest of neighbours stay
REST = theme.FillStyle(theme.WAIT, "", "none", theme.INK)


def device_ranks(result: Result, rank: int) -> list[int]:
    """List the ranks on a rank's device, including itself."""
    k = int(result.scenario["cluster"].get("ranks_per_device", 1))
    first = rank // k * k
    return list(range(first, min(first + k, result.world_size)))


def capacity(result: Result, rank: int) -> float:
    """Return the memory of a rank's device [bytes]."""
    return Cluster.model_validate(result.scenario["cluster"]).devices()[rank].memory


def shown_parts(kept: Floats) -> list[int]:
    """Choose the visible parts of memory, as places in `MEMORY_PARTS`.

    ``kept`` has the shape `(..., len(MEMORY_PARTS))` [bytes].
    """
    flat = kept.reshape(-1, len(MEMORY_PARTS))
    largest, highest = flat.max(axis=0), flat.sum(axis=1).max()
    return [int(part) for part in np.flatnonzero(largest > LEAST_SHARE * highest)]


def _layers(kept: Floats) -> list[tuple[str, Floats, theme.FillStyle]]:
    """List the visible parts, and the rest, with names and looks; ``kept`` is `(n, num_parts)`."""
    parts = shown_parts(kept)
    layers = [
        (MEMORY_PARTS[part].replace("_", " "), kept[:, part], theme.PART_FILLS[MEMORY_PARTS[part]])
        for part in parts
    ]
    others = np.delete(kept, parts, axis=1).sum(axis=1)
    return [*layers, *[("the rest", others, REST) for _ in range(bool(others.any()))]]


MAX_ROWS = 16  # bars; of more groups of ranks some are dropped
LEAST_DIFFERENCE = 0.01  # least relative difference of peaks


def memory_per_rank(study: Study) -> Picture | None:
    """Show peak memory in parts, a bar per group of ranks with equal peaks."""
    result = study.points[-1] if study.points else None
    if result is None or result.trace is None or not result.trace.memory:
        return None
    peaks = result.metrics.peak_memory_bytes
    if min(peaks) >= (1 - LEAST_DIFFERENCE) * max(peaks):
        return None
    every = list(grouped((peak, rank) for rank, peak in enumerate(peaks)).values())
    ends = [int(np.argmax(peaks)), int(np.argmin(peaks))]
    shown = [every[i] for i in choose(every, ends, MAX_ROWS)]
    usages = [usage(result.trace.memory, [rank]) for rank, *_ in shown]
    kept = np.array([device.kept[device.peak()] for device in usages])
    total, rows = kept.sum(axis=1), [float(row) for row in range(len(shown))]
    room = max(capacity(result, rank) for rank, *_ in shown)
    is_near = bool(room <= FAR * total.max())
    unit, scale = theme.nbytes_unit(max(total.max(), room if is_near else 0.0))
    size_unit, of = theme.nbytes_unit(room)
    label = f"Memory at the peak [{unit}], capacity {room / of:.4g} {size_unit}"
    if len(shown) < len(every):
        label += f"\n{len(shown)} of {len(every)} groups of ranks are shown, the fullest among them"
    names = [listed(ranks) + f"\n{len(ranks)} ranks" * (len(ranks) > 2) for ranks in shown]
    chart = Chart(
        "Memory of every rank at its peak",
        Axis("Rank [number]", "category", ticks=dict(enumerate(names))),
        Axis(label, unit=unit),
        [
            Series(name, rows, sizes / scale, "bar", color=fill.color, hatch=fill.hatch,
                   hatch_color=fill.hatch_color, stack="memory")
            for name, sizes, fill in _layers(kept)
        ],
        [ReferenceLine("", room / scale, "x")] * is_near,
        sideways=True,
        notes=[Note(f"{size / scale:.4g}", size / scale, row) for row, size in enumerate(total)],
    )  # fmt: skip
    return Picture(chart.title, about_point(result), [chart])


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


def memory(study: Study) -> Picture | None:
    """Show memory in parts over a step, of the fullest device."""
    result = study.points[-1] if study.points else None
    chart = None if result is None else memory_over_step(result)
    if result is None or chart is None:
        return None
    ranks = fullest_step(result).ranks
    several = f"ranks {ranks[0]}–{ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
    return Picture(f"Memory of {several}, the fullest", about_point(result), [chart])


def memory_over_step(result: Result) -> Chart | None:
    """Draw the memory over a step; None without a memory trace."""
    if result.trace is None or not any(held.step >= 0 for held in result.trace.memory):
        return None
    curves = fullest_step(result)
    total, room = curves.kept.sum(axis=1), capacity(result, curves.ranks[0])
    is_near = bool(room <= FAR * total.max())
    time_unit, per_second = theme.time_unit(curves.end - curves.begin)
    unit, scale = theme.nbytes_unit(max(total.max(), room if is_near else 0.0))
    kept = _thinned(curves.at, total)
    times = ((curves.at[kept] - curves.begin) * per_second).tolist()
    layers = _layers(curves.kept)
    ranks = f"rank {curves.ranks[0]}" + f" to {curves.ranks[-1]}" * (len(curves.ranks) > 1)
    peak = f"{nbytes(total[curves.peak])}{_doing_at(result.trace, curves)}"
    return Chart(
        "Memory over a step",
        Axis(f"Time since the start of step {curves.step + 1} [{time_unit}]", unit=time_unit),
        Axis(f"Device memory [{unit}]", unit=unit),
        [
            Series(name, times, (sizes[kept] / scale).tolist(), "steps", color=fill.color,
                   hatch=fill.hatch, hatch_color=fill.hatch_color, stack="memory")
            for name, sizes, fill in layers
        ],
        [ReferenceLine(f"capacity {nbytes(room)}", room / scale)] * is_near,
        caption=f"What the fullest device, of {ranks}, keeps: at most {peak}, of {nbytes(room)}.",
        stretches=_phases(result.trace.of_ranks(curves.ranks[:1]), curves, per_second),
        notes=[_peak_note(result.trace, curves, per_second, unit, scale, 0.0 if is_near else room)],
    )  # fmt: skip


def _thinned(at: Floats, total: Floats) -> Ints:
    """Choose the fullest of close instants if there are many, with both ends."""
    if len(at) <= MOST_INSTANTS:
        return np.arange(len(at))
    bins = np.floor((at - at[0]) / (at[-1] - at[0]) * MOST_INSTANTS)
    order = np.lexsort((total, bins))
    last = np.append(bins[order][1:] != bins[order][:-1], True)
    return np.sort(order[last])


def fullest_step(result: Result) -> MemoryCurves:
    """Choose the fullest device, and its fullest step."""
    trace = result.trace
    assert trace is not None, "draw only results with a trace"
    peaks = np.array(result.metrics.peak_memory_bytes, dtype=float)
    firsts = [r for r in range(result.world_size) if device_ranks(result, r)[0] == r]
    fullest = max(firsts, key=lambda first: peaks[device_ranks(result, first)].sum())
    ranks = device_ranks(result, fullest)
    device = usage(trace.memory, ranks)
    # without the setup
    in_steps = device._replace(kept=np.where(device.step[:, None] >= 0, device.kept, 0.0))
    step = int(device.step[in_steps.peak()])
    begin, end = _bounds(trace.of_ranks(ranks), step)
    mine = np.flatnonzero(device.step == step)
    before = device.kept[mine[0] - 1] if mine[0] else np.zeros(len(MEMORY_PARTS))
    at = np.concatenate([[begin], device.at[mine], [end]])
    kept = np.concatenate([[before], device.kept[mine], device.kept[mine[-1:]]])
    peak = int(kept.sum(axis=1).argmax())
    return MemoryCurves(ranks, step, begin, max(end, float(at[-2])), at, kept, peak)


def _bounds(trace: Trace, step: int) -> tuple[float, float]:
    """Compute begin and end of a step on the ranks of a trace [s]."""
    mine = trace.step == step
    begin = float(trace.end[trace.step < step].max(initial=0.0))
    end = float(trace.end[mine].max(initial=begin))
    return begin, end if end > begin else begin + 1e-9


def _peak_note(
    trace: Trace, curves: MemoryCurves, per_second: float, unit: str, scale: float, room: float
) -> Note:
    """Mark the peak with its size, activity and largest parts; ``room`` is written if not drawn."""
    kept = curves.kept[curves.peak]
    x, end = ((time - curves.begin) * per_second for time in (curves.at[curves.peak], curves.end))
    parts = ", ".join(
        f"{MEMORY_PARTS[part].replace('_', ' ')} {kept[part] / kept.sum():.0%}"
        for part in np.argsort(-kept, kind="stable")[:3]
        if kept[part] > 0
    )
    of = ""
    if room:
        room_unit, in_unit = theme.nbytes_unit(room)
        of = f" of {room / in_unit:.4g} {room_unit}"
    height = kept.sum() / scale
    text = f"peak {height:.4g} {unit}{of}{_doing_at(trace, curves)}\n{parts}"
    return Note(text, x, height, "up right" if x < end / 2 else "up left", marker="v")


def _doing_at(trace: Trace, curves: MemoryCurves) -> str:
    """Write the device's activity at the peak."""
    trace, at = trace.of_ranks(curves.ranks), curves.at[curves.peak]
    lane = trace.lane == COMPUTE_LANE
    during = np.flatnonzero(lane & (trace.start <= at) & (at < trace.end))
    if not len(during):
        return ""
    number = during[0]
    activity, name = ACTIVITIES[trace.activity[number]], trace.names[trace.name[number]]
    return f", in {activity}" + (f" of {name}" if activity in ("forward", "backward") else "")


def _phases(trace: Trace, curves: MemoryCurves, per_second: float) -> list[Stretch]:
    """Name the long phases of a step on a rank."""
    begin, least = curves.begin, PHASE_SHARE * (curves.end - curves.begin)
    return [
        Stretch((name,), (start - begin) * per_second, (end - begin) * per_second)
        for name, start, end in phases(trace, curves.step)
        if end - start >= least
    ]


def phases(trace: Trace, step: int) -> list[tuple[str, float, float]]:
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
