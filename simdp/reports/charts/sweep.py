"""Charts of sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import grouped
from simdp.errors import UnitError
from simdp.keys import written
from simdp.reports import theme
from simdp.reports.captions import about, about_scenario
from simdp.reports.charts.chart import Axis, Chart, Note, Picture, ReferenceLine, Series
from simdp.reports.charts.memory import capacity, device_ranks
from simdp.reports.charts.names import differ, evenly, key_label, point_names
from simdp.reports.charts.scaling import UNKNOWN, scaling_charts
from simdp.results.comparison import ComparedPoint, Comparison
from simdp.results.metrics import Metrics
from simdp.results.result import Result, Study
from simdp.units import COMMON, DIMENSIONS, parse

MAX_ROWS = 16  # points; of more some are dropped
FAR = 4.0  # multiple of the highest peak above which a device's memory is written, not drawn
REASON_WIDTH = 300.0  # width for the reason of a point that cannot run [points]
WIDTHS = (1.9, 1.0)  # of the panels of steps and of memory

# parts of a step's time, in the order of the bars, with their look
STEP_PARTS = {
    "compute_s": ("compute", theme.FILLS["forward"]),
    "update_s": ("update", theme.FILLS["update"]),
    "exposed_comm_s": ("exposed comm", theme.FILLS["comm"]),
    "wait_s": ("wait", theme.FILLS["wait"]),
    "other_s": ("other", theme.FillStyle("#FFFFFF", "....", theme.MUTED, theme.INK)),
}

MEMORY = theme.FillStyle(theme.INPUT, "", "none", theme.INK)
# bars of memory that fits a device, and that does not
TOO_MUCH = theme.FillStyle(theme.STRAGGLER, "xxxx", "#F2B48C", theme.INK)


def steps(
    title: str,
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    *,
    axis: str = "",
    caption: str = "",
    note: str = "",
) -> Chart:
    """Draw the parts of steps as stacked bars; ``parts`` have the keys of `STEP_PARTS` [s]."""
    shown = [
        (name, [part.get(key, 0.0) for part in parts], fill)
        for key, (name, fill) in STEP_PARTS.items()
        if any(part.get(key) for part in parts)
    ]
    return stacked(title, names, shown, axis=axis, caption=caption, note=note)


def stacked(
    title: str,
    names: Sequence[str],
    parts: Sequence[tuple[str, Sequence[float], theme.FillStyle]],
    *,
    axis: str = "",
    caption: str = "",
    note: str = "",
) -> Chart:
    """Draw stacked bars of times [s]; each part has a name, a value for each bar, and a look."""
    totals = [sum(values) for values in zip(*(values for _, values, _ in parts), strict=True)]
    unit, per_second = theme.time_unit(max(totals, default=0.0))
    return Chart(
        title,
        Axis(axis, "category"),
        Axis(f"Time [{unit}], mean over ranks", unit=unit),
        [bars(name, names, [v * per_second for v in values], fill) for name, values, fill in parts],
        caption=caption,
        sideways=True,
        note=note,
    )


def bars(
    name: str, x: Sequence[str] | Sequence[float], y: Sequence[float], fill: theme.FillStyle
) -> Series:
    """Make stacked bars with a fill."""
    series = Series(name, x, y, "bar", stack="step", color=fill.color, hatch=fill.hatch)
    return series._replace(hatch_color=fill.hatch_color)


def _points(
    study: Study | Comparison, points: Sequence[ComparedPoint], names: Sequence[str], about: str
) -> Picture:
    """Draw a row per point: left the parts of its step, right its fullest device.

    At least one point ran; others have their reason.
    """
    keys = study.over if isinstance(study, Comparison) else study.points[0].set
    label = ", ".join(dict.fromkeys(key_label(key, study.scenario) for key in keys))
    rows = Axis(label, "category", ticks=dict(enumerate(names)))
    ran = {row: point for row, point in enumerate(points) if point.metrics is not None}
    reasons = []
    for row, point in enumerate(points):
        if row not in ran:
            reason = " ".join((point.problems or ["it gave no result"])[0].split())
            text = f"cannot run: {reason}"
            reasons.append(Note(text, 0.0, row, color=theme.STRAGGLER, room=REASON_WIDTH))
    left_out = ""
    if len(points) < (count := len(study.points)):
        left_out = f"\n{len(points)} of {count} points are shown"
    left = _steps_of_rows(ran, rows, left_out)
    right = _memory_of_rows(ran, rows)
    charts = [Chart(left.title, left.x, left.y, left.series, sideways=True,
                    notes=[*left.notes, *reasons]), right]  # fmt: skip
    return Picture("What a step is made of", about, charts, WIDTHS)


def _steps_of_rows(ran: Mapping[int, ComparedPoint], rows: Axis, left_out: str) -> Chart:
    """Stack the parts of each point's step, above its known interval."""
    metrics = {row: point.run_metrics for row, point in ran.items()}
    chart = steps("", [str(row) for row in ran], list(metrics.values()))
    unit, per_second = theme.time_unit(max(m.step_time_s for m in metrics.values()))
    parts = [series._replace(x=list(ran)) for series in chart.series]
    known = {row: m.interval_s for row, m in metrics.items() if m.interval_s}
    if known:
        low, high = np.array(list(known.values())).T * per_second
        parts.append(Series("90 % interval", list(known), (), "ends", low, high))
    ends = sum(np.asarray(part.y) for part in parts if part.look == "bar")
    texts = [f"{_short(m.step_time_s * per_second)} {unit}" for m in metrics.values()]
    notes = [Note(*of) for of in zip(texts, np.broadcast_to(ends, len(texts)), ran, strict=True)]
    label = f"Step time [{unit}], mean over ranks{left_out}"
    return Chart("", rows, Axis(label, unit=unit), parts, sideways=True, notes=notes)


def _memory_of_rows(ran: Mapping[int, ComparedPoint], rows: Axis) -> Chart:
    """Draw the memory of the fullest device, and its capacity."""
    kept = {row: point.device_bytes or 0.0 for row, point in ran.items()}
    rooms = {row: point.capacity_bytes or 0.0 for row, point in ran.items()}
    most = max(kept.values())
    unit, scale = theme.nbytes_unit(most)
    series = []
    for name, fill, fits in (("fits", MEMORY, True), ("does not fit", TOO_MUCH, False)):
        shown = [row for row in ran if (kept[row] <= rooms[row]) is fits]
        if shown:
            series.append(bars(name, shown, [kept[row] / scale for row in shown], fill))
    near = {row: room / scale for row, room in rooms.items() if room <= FAR * most}
    if near:
        series.append(Series("device", list(near), list(near.values()), "limit"))
    notes = [
        Note(f"{_short(size / scale)} {unit}", size / scale, row) for row, size in kept.items()
    ]
    far = [room for row, room in rooms.items() if row not in near]
    label = f"Peak memory [{unit}]"
    if far:
        far_unit, far_scale = theme.nbytes_unit(min(far))
        least = "a device has" if min(far) == max(far) else "devices have at least"
        label += f"\n{least} {_short(min(far) / far_scale)} {far_unit}"
    return Chart("Fullest device", rows, Axis(label), series, sideways=True, notes=notes)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def comparison(study: Comparison) -> Picture | None:
    """Show the parts of every point's step, and the memory of its fullest device."""
    if not study.ran:
        return None
    every = study.points if len(study.points) <= MAX_ROWS else study.ran
    points = [every[i] for i in evenly(len(every), MAX_ROWS)]
    of = about_scenario(study.scenario, study.over)
    return _points(study, points, _comparison_names(points), of)


def _comparison_names(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the rows; with the number of ranks if points differ in it."""
    several = len({point.world_size for point in points if point.world_size is not None}) > 1
    names = []
    for point in points:
        ranks = f"{point.world_size} GPU{'s' * (point.world_size != 1)}"
        in_label = "cluster.world_size" in point.set and point.label.endswith(str(point.world_size))
        # The axis names a single key, so the rows have its values only.
        name = written(*point.set.values()) if len(point.set) == 1 else point.label
        has_ranks = several and not in_label and point.world_size is not None
        names.append(name + (f" · {ranks}" if has_ranks else ""))
    return names


def fullest_devices(points: Sequence[ComparedPoint]) -> Chart:
    """Draw the memory of the fullest device."""
    names = [point.label for point in points]
    sizes = [(point.device_bytes or 0.0) / 1e9 for point in points]
    rooms = {(point.capacity_bytes or 0.0) / 1e9 for point in points}
    room = f"; it has {rooms.pop():.3g} GB." if len(rooms) == 1 else "."
    return Chart(
        "Memory of the fullest device",
        Axis("", "category"),
        Axis("Memory [GB]", unit="GB"),
        [Series("at its peak", names, sizes, "bar", color=theme.HOST)],
        caption="What the ranks of one device keep at their peaks" + room,
        sideways=True,
    )


WORLD_SIZE = "cluster.world_size"
MIN_VALUES, MAX_LINES = 3, 6  # values of a key that make a curve; curves
LOG_RATIO = 8.0  # ratio of positive values from which on the axis is logarithmic
LEAST_DIFFERENCE = 0.01  # least relative difference that is shown


class TradeOff(NamedTuple):
    """Contents of the chart below the step times."""

    label: str  # of its axis, with the unit
    read: Callable[[Metrics], float]  # reads the value from a point's metrics
    title: str
    marks: Sequence[ReferenceLine] = ()


def sweep(study: Study) -> Picture | None:
    """Show step time by a swept key, above its trade-off, such as loss or memory."""
    charts, key = sweep_charts(study), key_of(study)
    if key is None:
        return None
    num_lines = len({*point_names(timed(study), leave_out=key)})
    left_out = f"; {MAX_LINES} of {num_lines} lines" if num_lines > MAX_LINES else ""
    return Picture(f"{charts[0].title}{left_out}", about(study), charts)


def sweep_charts(study: Study) -> list[Chart]:
    """Draw the step time, and its trade-off, against the swept number with the most values."""
    key, points = key_of(study), timed(study)
    if key is None:
        return []
    place = places_of([point.set[key] for point in points]) or {}
    names = point_names(points, leave_out=key)
    groups = grouped(zip(names, points, strict=True))
    shown = [[*groups][i] for i in evenly(len(groups), MAX_LINES)]
    curves = {
        name: sorted(groups[name], key=lambda point: place[written(point.set[key])])
        for name in shown
    }
    unit, per_second = theme.time_unit(max(p.metrics.step_time_s for p in points))
    second, label = trade_off(points), key_label(key, study.scenario)
    lowered = label[:1].lower() + label[1:].partition(" [")[0]
    low, high = min(place.values()), max(place.values())
    is_log = low > 0 and high / low >= LOG_RATIO
    ticks = {at: text for text, at in place.items()}
    over = Axis(label, "log2" if is_log else "value", ticks=ticks)

    def lines(read: Callable[[Metrics], float], has_ends: bool = False) -> list[Series]:
        made = []
        for name, group in curves.items():
            at = [place[written(point.set[key])] for point in group]
            line = Series(name or "simulated", at, [read(point.metrics) for point in group])
            if has_ends:
                ends = [point.metrics.interval_s or UNKNOWN for point in group]
                least, most = np.array(ends, dtype=np.float64).T * per_second
                line = line._replace(low=least, high=most)
            made.append(line)
        return made

    lower = lines(second.read)
    values = [value or 0.0 for line in lower for value in line.y]
    return [
        Chart(
            f"Step time by {lowered}",
            over,
            Axis(f"Step time [{unit}]", unit=unit),
            lines(lambda m: float(m.step_time_s) * per_second, has_ends=True),
            caption="The band is the 90 % interval." * any(p.metrics.interval_s for p in points),
        ),
        Chart(
            f"{second.title} by {lowered}",
            over,
            Axis(second.label, is_near=min(values) > 0.5 * max(values)),
            lower,
            second.marks,
        ),
    ]


def timed(study: Study) -> list[Result]:
    """List the points that have a step time."""
    return [point for point in study.points if point.metrics.step_time_s]


def key_of(study: Study) -> str | None:
    """Choose the numeric key with the most values as axis.

    None without one, and if more world sizes are swept, which the chart `scaling` shows.
    """
    points = timed(study)
    keys = [*(points[0].set if points else {})]
    counts = {
        key: len(place)
        for key in keys
        if (place := places_of([point.set[key] for point in points])) is not None
    }
    if not counts:
        return None
    key = max(counts, key=lambda key: (counts[key], key != WORLD_SIZE))
    return key if counts[key] >= MIN_VALUES and key != WORLD_SIZE else None


def places_of(values: Sequence[object]) -> dict[str, float] | None:
    """Map written values to positions on an axis; None if one is no number."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    texts = [value for value in values if isinstance(value, str)]
    if len(numbers) + len(texts) < len(values):
        return None
    if not texts:
        return {written(value): float(value) for value in numbers}
    units = {str(value).strip().partition(" ")[2] for value in values}
    known = [name for name, of in DIMENSIONS.items() if all((u, of.unit) in COMMON for u in units)]
    for dimension in known or DIMENSIONS:
        try:
            return {written(value): parse(value, dimension) for value in (*numbers, *texts)}
        except UnitError:
            continue
    return None


def trade_off(points: Sequence[Result]) -> TradeOff:
    """Choose the lower chart: loss, else memory, else lost time if they vary, else throughput."""
    losses = [point.metrics.last_loss for point in points]
    last = [float(loss) for loss in losses if loss is not None]
    if None not in losses and differ(last, LEAST_DIFFERENCE, False):
        label = "Last loss [the loss's own unit]"
        return TradeOff(label, lambda m: m.last_loss or 0.0, "Last step's loss")
    peaks = [float(max(point.metrics.peak_memory_bytes)) for point in points]
    if differ(peaks, LEAST_DIFFERENCE, False):
        unit, scale = theme.nbytes_unit(max(peaks))
        rooms = {capacity(point, 0) for point in points if not point.metrics.fits_memory}
        marks = [
            ReferenceLine(f"capacity {room / scale:.4g} {unit}", room / scale)
            for room in rooms
            if len(rooms) == 1
        ]
        return TradeOff(
            f"Memory [{unit}]",
            lambda m: max(m.peak_memory_bytes) / scale,
            "Peak memory of the fullest rank",
            marks,
        )
    exposed = [point.metrics.exposed_comm_s or 0.0 for point in points]
    lost = [point.metrics.wait_s or 0.0 for point in points]
    if any(differ(times, LEAST_DIFFERENCE, False) for times in (exposed, lost)):
        unit, per_second = theme.time_unit(max(a + b for a, b in zip(exposed, lost, strict=True)))
        return TradeOff(
            f"Lost [{unit}]",
            lambda m: ((m.exposed_comm_s or 0.0) + (m.wait_s or 0.0)) * per_second,
            "Exposed communication, and waiting for slower ranks",
        )
    return TradeOff(
        "Throughput [samples/s]", lambda m: m.throughput_samples_per_s or 0.0, "Throughput"
    )


MOST_LETTERS = 400  # letters of a name that is broken into lines; only longer ones are cut


def points(study: Study) -> Picture | None:
    """Show the parts of every point's step, and the memory of its fullest device."""
    if len(timed(study)) < 2 or scaling_charts(study) or key_of(study) is not None:
        return None
    names = point_names(study.points, limit=MOST_LETTERS)
    if len(study.points[0].set) == 1:  # which the axis names
        names = [written(*point.set.values()) for point in study.points]
    chosen = evenly(len(study.points), MAX_ROWS)
    rows = [_compared(study.points[i]) for i in chosen]
    return _points(study, rows, [names[i] or "-" for i in chosen], about(study))


def _compared(point: Result) -> ComparedPoint:
    """Read a point with its device of the highest memory utilisation."""
    peaks = point.metrics.peak_memory_bytes
    held = {
        (sum(peaks[r] for r in device_ranks(point, rank)), capacity(point, rank))
        for rank in _unlike(point, peaks)
    }
    kept, room = max(held, key=lambda pair: pair[0] / pair[1])
    return ComparedPoint(point.set, {}, point.world_size, point.metrics, kept, room)


def _unlike(point: Result, peaks: Sequence[int]) -> list[int]:
    """List the first rank of each device; of equal devices only the fullest one's."""
    firsts = [r for r in range(point.world_size) if device_ranks(point, r)[0] == r]
    if isinstance(point.scenario["cluster"].get("device"), list):
        return firsts
    kept = {sum(peaks[r] for r in device_ranks(point, first)): first for first in firsts}
    return [kept[max(kept)]]
