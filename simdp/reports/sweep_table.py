"""Tables of `run` on a sweep, of fits, extrapolate and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import fill
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.keys import format_settings, short_key, written
from simdp.reports import answers, figures, sections
from simdp.reports.figures import WIDTH, Row, TableCell, nbytes, number
from simdp.reports.sections import table_of
from simdp.reports.wide_table import filled, narrow_tables, wide_table
from simdp.results.comparison import ComparedPoint, Comparison, best_of, ties_of
from simdp.results.metrics import LABELS, PARTS, Metrics
from simdp.results.plan import ExtrapolatedPoint, Extrapolation, Fitting, FittingRow
from simdp.results.result import FailedPoint, Result, Study

LEAST_SHARE = 1e-3  # least share of a step that a column needs
LEAST_DIFFERENCE = 0.01  # least relative difference of peak memory that is shown

# columns that a wide table drops, in this order
SPARE = (
    *("samples/s", "update", "wait", "other", "compute", "eff.", "MFU"),
    *("skipped", "tok/s/GPU", "memory", "90 %"),
)

# columns that stay if wrapping long key values to so many letters makes room
FOLDED_FOR, FOLDED_KEY = ("tok/s/GPU", "memory"), 24
LONG_SAMPLE = 1000  # tokens per sample from which on tokens are counted, not samples
MAX_FAILED = 10  # failed points whose reasons are listed
LEAST_KEY = 10  # least width of a key's column
INTERVAL = LABELS["interval_s"].head
FOOT = "speed-up: {} over the first point's; * the fastest point"


def sweep_table(study: Study, verbose: bool = False) -> RenderableType:
    """Write a row per point of a sweep; columns of negligible values are dropped."""
    num_keys, cells = sweep_cells(study)
    heads = [*cells][:num_keys]
    for name in SPARE:
        folded = heads if name in FOLDED_FOR else []
        if _width(cells, folded, FOLDED_KEY) >= WIDTH:
            cells.pop(name, None)
    columns = [(head, place >= num_keys) for place, head in enumerate(cells)]
    section = table_of(sweep_title(study), columns, zip(*cells.values(), strict=True))
    table = wide_table(section, dict(enumerate(_room_for_keys(cells, num_keys))), padding=0)
    foot, rows = sweep_feet(study, verbose)
    rows = [*answers.verdict(sweep_verdict(study).lines), *rows]
    feet = [foot] * bool(foot) + [answers.lines(rows, WIDTH)] * bool(rows)
    return Group(table, *map(Text, feet))


def sweep_title(study: Study) -> str:
    """Write a sweep's title with the unit of its times."""
    unit, _ = figures.unit_of(p.metrics.step_time_s for p in study.points)
    more = ", and its 90 % interval" if has_intervals(study) else ""
    return f"{study.scenario['name']}: a step's time in {unit}, mean over ranks{more}"


def has_intervals(study: Study) -> bool:
    """Return whether a point has a 90 % interval of its step."""
    return any(p.metrics.interval_s for p in study.points)


def sweep_cells(study: Study) -> tuple[int, dict[str, list[TableCell]]]:
    """Make the columns of a sweep by head, keys first, and count the keys."""
    points, keys = study.points, list(study.scenario["sweep"])
    columns = _metric_cells([point.metrics for point in points])
    short = [key.rpartition(".")[2] for key in keys]
    heads = short if len({*short, *columns}) == len(short) + len(columns) else keys
    cells = {
        head: [TableCell(written(p.set[key])) for p in points]
        for head, key in zip(heads, keys, strict=True)
    }
    cells |= columns
    billed = _billed(study)
    for name, tell in answers.columns(billed).items():
        cells[name] = [tell(bill) for bill in billed]
    best, rates, _ = best_point(study)
    if best is not None:
        cells["speed-up"] = [
            figures.speedup(rate, rates[0], number == best) for number, rate in enumerate(rates)
        ]
    return len(keys), cells


def best_point(study: Study) -> tuple[int | None, list[float | None], str]:
    """Find the fastest point, all rates, and their unit: tokens/s if samples differ in length."""
    points = study.points
    unequal = _differ_in_length(points)
    rates = [
        p.metrics.tokens_per_s if unequal else p.metrics.throughput_samples_per_s for p in points
    ]
    best = best_of(
        [
            replace(p.metrics, throughput_samples_per_s=rate)
            for p, rate in zip(points, rates, strict=True)
        ]
    )
    return best, rates, "tokens/s" if unequal else "samples/s"


def sweep_verdict(study: Study) -> answers.VerdictText:
    """Write the verdict on a sweep; see `simdp.reports.answers.of_sweep`."""
    return answers.of_sweep(study, *best_point(study))


def sweep_feet(study: Study, verbose: bool = False) -> tuple[str, list[Row]]:
    """Write the explanation of speed-ups, and the rows about all points."""
    points = study.points
    best, _, unit = best_point(study)
    rows = [*answers.price(_billed(study)), *_idle_cards(points)]
    rows += answers.known(points, verbose)
    rows += _failures(study.failed)
    among = "" if all(p.metrics.fits_memory for p in points) else " that fits"
    return (FOOT.format(unit) + among) if best is not None else "", rows


def _billed(study: Study) -> list[answers.Found]:
    """Read costs and targets of all points, if the scenario or a point sets them or a price."""
    billed = any(map(answers.is_asked_for, [study.scenario, *(p.scenario for p in study.points)]))
    return [(p.cost, p.target) for p in study.points] if billed else []


def _failures(failed: Sequence[FailedPoint]) -> list[Row]:
    """List failed points with their reasons."""
    rows = list[Row]()
    for point in failed[:MAX_FAILED]:
        count = len(point.problems) - 1
        more = f" (and {count} more in result.json)" if count else ""
        failure = f"{format_settings(point.set)} failed"
        rows.append(Row("failed", failure, f"{point.problems[0]}{more}"))
    left = len(failed) - MAX_FAILED
    return rows + [Row("failed", "failed", f"{left} more points, see result.json")] * (left > 0)


def _idle_cards(points: Sequence[Result]) -> list[Row]:
    """Warn of the first point that leaves most network cards of a node idle."""
    for point in points:
        for row in answers.cards(point):
            values = ", ".join(map(written, point.set.values()))
            return [row._replace(label=f"{row.label} at {values}")]
    return []


def _differ_in_length(points: Sequence[Result]) -> bool:
    """Return whether points differ in tokens per sample."""
    tokens = [
        (p.metrics.tokens_per_s or 0.0) / (p.metrics.throughput_samples_per_s or 1.0)
        for p in points
    ]
    return min(tokens) > 0 and max(tokens) > (1 + LEAST_DIFFERENCE) * min(tokens)


def _are_long(metrics: Iterable[Metrics]) -> bool:
    """Return whether all samples are long enough for rates in tokens."""
    return all(
        m.tokens_per_s
        and m.throughput_samples_per_s
        and m.tokens_per_s >= LONG_SAMPLE * m.throughput_samples_per_s
        for m in metrics
    )


def _exact(shown: TableCell, value: float | None) -> TableCell:
    """Sort a rounded figure by its exact value."""
    return TableCell(shown, value)


def _as_written(shown: TableCell) -> TableCell:
    """Sort a figure by its number in its own unit."""
    return TableCell(shown, shown.number)


class TimeFormat(NamedTuple):
    """Format of all times of a table."""

    scale: float  # of their unit [s]
    digits: str


class MetricColumn(NamedTuple):
    """A column of a sweep's table."""

    metric: str  # whose head it has
    write: Callable[[Metrics, TimeFormat], TableCell]  # its cell of a point
    applies: Callable[[Sequence[Metrics]], bool]  # whether the points need it


def _time_column(name: str) -> MetricColumn:
    """Make a column of a part of a step, shown unless it is negligible."""

    def write(metrics: Metrics, times: TimeFormat) -> TableCell:
        value = metrics[name]
        return TableCell(f"{value / times.scale:{times.digits}}" if value else "0", value)

    def applies(points: Sequence[Metrics]) -> bool:
        return any(m[name] > LEAST_SHARE * m.step_time_s for m in points)

    return MetricColumn(name, write, applies)


def _interval_cell(metrics: Metrics, times: TimeFormat) -> TableCell:
    ends = metrics.interval_s
    return _exact(figures.interval(ends, times.scale), ends[0] if ends else None)


def _peak_cell(metrics: Metrics, _: TimeFormat) -> TableCell:
    peak = max(metrics.peak_memory_bytes)
    return _exact(nbytes(peak), peak)


def _peaks_differ(points: Sequence[Metrics]) -> bool:
    peaks = [max(m.peak_memory_bytes) for m in points]
    return max(peaks) > (1 + LEAST_DIFFERENCE) * min(peaks)


COLUMNS = (
    _time_column("step_time_s"),
    MetricColumn("interval_s", _interval_cell, lambda points: any(m.interval_s for m in points)),
    *map(_time_column, PARTS),
    MetricColumn(
        "tokens_per_s_per_gpu", lambda m, _: number(m.tokens_per_s_per_gpu, ",.0f"), _are_long
    ),
    MetricColumn(
        "mfu",
        lambda m, _: _as_written(figures.percent(m.mfu)),
        lambda points: _are_long(points) and all(m.mfu is not None for m in points),
    ),
    MetricColumn(
        "throughput_samples_per_s",
        lambda m, _: _exact(figures.short(m.throughput_samples_per_s), m.throughput_samples_per_s),
        lambda points: not _are_long(points),
    ),
    MetricColumn("peak_memory_bytes", _peak_cell, _peaks_differ),
    MetricColumn(
        "fits_memory",
        lambda m, _: TableCell("yes" if m.fits_memory else "no"),
        lambda points: not all(m.fits_memory for m in points),
    ),
    MetricColumn(
        "scaling_efficiency",
        lambda m, _: _as_written(figures.percent(m.scaling_efficiency)),
        lambda points: any(m.scaling_efficiency is not None for m in points),
    ),
    MetricColumn(
        "loss", lambda m, _: number(m.last_loss), lambda points: any(m.loss for m in points)
    ),
    MetricColumn(
        "skipped_steps",
        lambda m, _: number(len(m.skipped_steps or []), "d"),
        lambda points: any(m.skipped_steps for m in points),
    ),
)
"""Columns of a sweep's table in their order, between its keys and its costs."""


def _metric_cells(points: Sequence[Metrics]) -> dict[str, list[TableCell]]:
    """Make the columns of `COLUMNS` that the points need, by head."""
    longest = max(m.step_time_s for m in points)
    _, scale = figures.unit_of([longest])
    times = TimeFormat(scale, figures.digits_of(longest / scale))
    return {
        LABELS[column.metric].head: [column.write(m, times) for m in points]
        for column in COLUMNS
        if column.applies(points)
    }


def _longest(head: str, cells: Sequence[str]) -> int:
    return max(map(len, [head, *cells]))


def _width(cells: Mapping[str, Sequence[str]], keys: Sequence[str] = (), longest: int = 0) -> int:
    """Compute a table's width with values of ``keys`` wrapped at ``longest`` letters."""
    widths = {head: _longest(head, column) for head, column in cells.items()}
    return sum(1 + (min(n, longest) if head in keys else n) for head, n in widths.items())


def _room_for_keys(cells: Mapping[str, Sequence[str]], num_keys: int) -> list[int]:
    """Shrink the widest key columns until the table fits."""
    room = [_longest(*column) for column in list(cells.items())[:num_keys]]
    excess = _width(cells) - (WIDTH - 1)
    while excess > 0 and max(room) > LEAST_KEY:
        room[room.index(max(room))] -= 1
        excess -= 1
    return room


Column = tuple[str, bool, Callable[[FittingRow], str]]
# suffixes of methods behind the strategy
ADDED = {"full": "", "offload": "+cpu", "lora": "+lora", "qlora": "+qlora"}

LEGEND = {
    "offload": "+cpu: DeepSpeed's offload to the host memory of each node",
    "lora": "+lora: adapters are trained, all else is frozen",
    "qlora": "+qlora: adapters of a model in 4 bits",
}


def fitting_table(fitting: Fitting) -> RenderableType:
    """Write the configurations that fit and those that do not; at least one row."""
    unit, scale = figures.unit_of(row.step_time_s or 0.0 for row in fitting.rows)
    columns = list(_fitting_columns(fitting, scale))
    heads = [(head, is_number) for head, is_number, _ in columns]
    rows = [[write(row) for *_, write in columns] for row in fitting.rows]
    on = f"{fitting.gpus} GPU{'s' * (fitting.gpus > 1)} of {nbytes(fitting.memory_bytes)}"
    if fitting.is_least:
        on = f"the fewest GPUs of {nbytes(fitting.memory_bytes)}"
    has_times = any(row.step_time_s for row in fitting.rows)
    title = f"{fitting.model} on {on}, {fitting.precision}; memory in GB"
    title += f", steps in {unit}" * has_times
    samples = f"samples of {fitting.samples_are}" + ": nothing fits" * (not has_times)
    if fitting.fitting_length:
        samples += f"; with {fitting.fitting_length:,} tokens something does"
        if fitting.fitting_host_bytes is not None:
            samples += f", if a node has {figures.about(fitting.fitting_host_bytes)} of host memory"
    table = wide_table(table_of("", heads, rows))
    return Group(filled([title, samples]), table, filled(_foot(fitting)))


def _fitting_columns(fitting: Fitting, scale: float) -> Iterator[Column]:
    """Yield the columns that have values."""
    if fitting.is_least:
        yield "GPUs", True, lambda row: f"{'>' if row.state == 'no' else ''}{row.gpus}"
    yield "strategy", False, lambda row: row.strategy + ADDED[row.method]
    yield "recompute", False, lambda row: row.recompute
    yield "batch", True, lambda row: str(row.microbatch)
    yield "fits", False, _state_or_need
    yield "peak", True, lambda row: _gigabytes(row.peak_memory_bytes)
    yield "step", True, lambda row: number(row.step_time_s and row.step_time_s / scale)
    if any(row.tokens_per_s for row in fitting.rows):
        yield "tokens/s", True, lambda row: number(row.tokens_per_s, ",.0f")
    else:
        yield "samples/s", True, lambda row: number(row.samples_per_s, ",.0f")
    if any(row.mfu for row in fitting.rows) and not fitting.is_least:
        yield "MFU", True, lambda row: "-" if row.mfu is None else f"{row.mfu:.0%}"
    if any(_price(row) for row in fitting.rows):
        yield "USD/M", True, lambda row: number(_price(row), ".3g")


def _state_or_need(row: FittingRow) -> str:
    """Write whether a row fits, or the memory that its nodes need."""
    return f"needs {figures.about(row.host_memory_bytes or 0)}" if row.fits is None else row.state


def _host_needs(fitting: Fitting) -> Iterator[str]:
    """Write the host memory of each method that offloads and fits the GPUs."""
    there = fitting.host_memory_bytes
    where = f", as in {fitting.machine}" if fitting.assumed and there else ""
    for row in fitting.rows:
        is_short = there is not None and (row.host_memory_bytes or 0.0) > there
        if row.host_memory_bytes is None or (row.state == "no" and not is_short):
            continue
        need = figures.host_need(row.host_memory_bytes, there)
        yield f"{row.strategy}{ADDED[row.method]}: {'no: ' * is_short}{need}{where}"
        if there is None:
            yield 'host memory: not known; --host-memory "500 GB" checks it'


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:,.{1 if value < 99.95e9 else 0}f}"


def _price(row: FittingRow) -> float | None:
    """Return the price of a million tokens, or else of a million samples."""
    return row.usd_per_million_tokens or row.usd_per_million_samples


def _foot(fitting: Fitting) -> Iterator[str]:
    if fitting.assumed is not None:
        yield f"assumed: {fitting.assumed}; --machine takes others"
    yield f"precision: {_of_precision(fitting.precision)}"
    kinds = {row.method for row in fitting.rows}
    yield from (line for kind, line in LEGEND.items() if kind in kinds)
    yield from dict.fromkeys(_host_needs(fitting))
    yield _explained(fitting)
    yield from _answer(fitting)


def _of_precision(precision: str) -> str:
    """Write the data types of weights, gradients and optimizer."""
    kind, _, low = precision.partition(" ")
    meaning = {
        "mixed": f"weights, gradients and layers in {low}, 32-bit master weights and optimizer",
        "amp": f"torch.autocast{' with a GradScaler' * (low == 'float16')}: layers in {low}, "
        "weights, gradients and optimizer in 32 bits",
        "full": "all in 32 bits",
    }
    return f"{precision}: {meaning[kind]}; --precision takes another"


def _explained(fitting: Fitting) -> str:
    """Explain the columns."""
    rows = [row for row in fitting.rows if row.state != "no"] or fitting.rows
    least = min(row.memory_low_bytes - row.peak_memory_bytes for row in rows) / 1e9
    most = max(row.memory_high_bytes - row.peak_memory_bytes for row in rows) / 1e9
    what = "tokens" if any(row.tokens_per_s for row in fitting.rows) else "samples"
    money = ""
    if any(_price(row) for row in fitting.rows):
        dated = f" of {fitting.price_date}" if fitting.price_date else ""
        money = f"; USD/M: per million {what}, at list prices{dated}"
    mfu = "; MFU: the model's own FLOPs over the GPUs' peak" if not fitting.is_least else ""
    return (
        "a steady step of one micro-batch per GPU; batch: its samples, by default as many as "
        "fit; peak: tensors of the fullest GPU; fits: with what CUDA, NCCL and fragments take "
        f"beside them, {least:.1f} to {most:.1f} GB; tight: that decides{mfu}{money}"
    )


def _answer(fitting: Fitting) -> Iterator[str]:
    """Write which configuration `init` writes, or that none fits."""
    states = {row.state for row in fitting.rows}
    if states == {"no"}:
        more = "larger GPUs"
        if not fitting.is_least:
            more = "more GPUs (--gpus '?' finds how many), larger ones"
        length = fitting.fitting_length
        shorter = f"--sequence-length {length}" if length else "shorter samples"
        yield f"nothing fits: take {more}, or {shorter}"
    elif "yes" not in states:
        yield "nothing fits for sure: what is tight may run out of memory"
    if fitting.is_least and fitting.rows[0].fits:
        yield f"the fewest that train all weights: {_named(fitting, 'full', 'offload')}"
    if (row := fitting.chosen) is not None:
        yield (
            f"init writes {row.strategy}{ADDED[row.method]}, {row.recompute}, batch "
            f"{row.microbatch}: the simplest of those within 5 % of the fastest{_inside(row)}"
        )


def _named(fitting: Fitting, *methods: str) -> str:
    """Write the least number of GPUs of each method with its strategy."""
    named = []
    for method in methods:
        rows = [row for row in fitting.rows if row.method == method and row.fits]
        if rows:
            least = min(rows, key=lambda row: row.gpus)
            named.append(f"{least.gpus} with {least.strategy}{ADDED[method]}")
    return ", ".join(named) or "none"


def _inside(row: FittingRow) -> str:
    """Write the interval of a step."""
    if row.low_s is None or row.high_s is None:
        return ""
    unit, scale = figures.unit_of([row.high_s])
    low, high = row.low_s / scale, row.high_s / scale
    return f"; 90 % interval of its step: {low:.3g} to {high:.3g} {unit}"


# Extrapolate table --------------------------------------------------------------------------------

EXTRAPOLATED_FOOT = (
    "samples/s of all GPUs; per GPU: over the recording's; memory: of the fullest GPU in GB; * the "
    "fastest of a machine that fits"
)


def extrapolation_table(extrapolation: Extrapolation) -> RenderableType:
    """Write a row per point, the best of each machine, and remarks."""
    unit, scale = figures.unit_of(point.step_time_s or 0.0 for point in extrapolation.points)
    columns = list(_extrapolated_columns(extrapolation, scale))
    heads = [(head, is_number) for head, is_number, _ in columns]
    rows = [[write(point) for *_, write in columns] for point in extrapolation.points]
    recording = extrapolation.recording
    gpus = f"{recording.gpus} GPU{'s' * (recording.gpus > 1)}"
    step = figures.seconds(recording.step_time_s)
    title = f"{recording.source} on {gpus}: {step} per step; below in {unit}"
    lines = [
        EXTRAPOLATED_FOOT,
        *best_lines(extrapolation),
        *(f"- {line}" for line in extrapolation.remarks),
    ]
    lines += [f"- {line}" for line in _impossible(extrapolation.points)]
    return Group(wide_table(table_of(title, heads, rows), padding=0), filled(lines))


def _extrapolated_columns(
    extrapolation: Extrapolation, scale: float
) -> Iterator[tuple[str, bool, Callable[[ExtrapolatedPoint], str]]]:
    """Yield the columns that have values."""
    best = [extrapolation.points[number] for number in extrapolation.best.values()]
    is_trace = extrapolation.recording.kind == "trace"

    def memory(point: ExtrapolatedPoint) -> str:
        if point.peak_memory_bytes is None:
            return "-"
        much = number(point.peak_memory_bytes / 1e9, ".3g")
        return f">{much}" if is_trace else f"{much}{'!' if point.fits is False else ''}"

    def ends(point: ExtrapolatedPoint) -> str:
        known = point.low_s is not None and point.high_s is not None
        return figures.interval([point.low_s or 0.0, point.high_s or 0.0] if known else None, scale)

    yield "machine", False, lambda point: point.machine
    if len({point.strategy for point in extrapolation.points}) > 1:
        yield "strategy", False, lambda point: point.strategy
    yield "GPUs", True, lambda point: f"{point.gpus}{'*' if point in best else ''}"
    yield "step", True, lambda point: number(point.step_time_s and point.step_time_s / scale)
    yield INTERVAL, True, ends
    yield "samples/s", True, lambda point: figures.large_number(point.throughput_samples_per_s)
    yield (
        "per GPU",
        True,
        lambda point: "-" if point.efficiency is None else f"{100 * point.efficiency:.0f} %",
    )
    yield "memory", True, memory
    yield "limit", False, lambda point: point.limit or "impossible"


def best_lines(extrapolation: Extrapolation) -> Iterator[str]:
    """Yield a sentence on the best point of each machine."""
    for machine, place in extrapolation.best.items():
        point = extrapolation.points[place]
        sentence = f"{machine}: {point.gpus} GPUs, {point.strategy}"
        if point.speedup is not None and point.efficiency is not None:
            sentence += f", train {point.speedup:.3g} times the recording's samples/s"
            sentence += f" ({figures.percent(point.efficiency)} per GPU)"
        sentence += f"; a step takes {figures.seconds(point.step_time_s or 0.0)}"
        if point.low_s is not None and point.high_s is not None:
            low, high = figures.seconds(point.low_s), figures.seconds(point.high_s)
            sentence += f" (90 %: {low} to {high})"
        yield f"{sentence}; limited by {point.limit}"


def _impossible(points: Sequence[ExtrapolatedPoint]) -> Iterator[str]:
    """Yield why points cannot run, with the numbers of GPUs that share a reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for point in points:
        if point.problem is not None:
            key = point.machine, point.strategy, point.problem
            reasons.setdefault(key, []).append(str(point.gpus))
    for (machine, strategy, problem), gpus in reasons.items():
        yield f"{', '.join(gpus)} GPUs of {machine}, {strategy}: {problem}"


# Compare table ------------------------------------------------------------------------------------

COMPARE_FOOT = (
    "a steady step: its time and exposed communication, mean over ranks; the fullest device's "
    "memory; what the rank that sends most sends; speed-up: samples/s over the first point's, with "
    "a star at the most, of what fits"
)

WEIGHTS_FOOT = (
    "same weights: rank 0's beside the first point's, but for rounding; in brackets the "
    "largest difference over the largest weight of its parameter"
)

# share of the parameters below which differing ones are named; names in a line
FEW, MAX_NAMES = 0.5, 2


def table(comparison: Comparison) -> RenderableType:
    """Write the points of a comparison side by side; at least one ran."""
    tables = narrow_tables(grid(comparison))
    by_words: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return Group(*tables, *(Text(fill(line, WIDTH, **by_words)) for line in remarks(comparison)))


def grid(comparison: Comparison) -> sections.Table:
    """Make a table with a row per point, the compared keys first."""
    unit, scale = figures.unit_of(point.run_metrics.step_time_s for point in comparison.ran)
    rates = [
        None if p.metrics is None else p.metrics.throughput_samples_per_s for p in comparison.points
    ]
    first, best = next(filter(None, rates), None), best_of([p.metrics for p in comparison.points])
    keys, world_sizes = list(comparison.over), {point.world_size for point in comparison.ran}
    columns: list[tuple[str, bool, Callable[[ComparedPoint, Metrics], str]]] = [
        ("ranks", True, lambda point, m: number(point.world_size, "d")),
        ("step", True, lambda point, m: number(m.step_time_s / scale)),
        (INTERVAL, True, lambda point, m: figures.interval(m.interval_s, scale)),
        ("samples/s", True, lambda point, m: figures.large_number(m.throughput_samples_per_s)),
        (
            "speed-up",
            True,
            lambda point, m: figures.speedup(
                m.throughput_samples_per_s,
                first,
                best is not None and point is comparison.points[best],
            ),
        ),
        ("exposed", True, lambda point, m: number(m.exposed_comm_s / scale)),
        ("memory", True, lambda point, m: nbytes(point.device_bytes or 0.0)),
        ("fits", False, lambda point, m: "yes" if m.fits_memory else "no"),
        ("sent", True, lambda point, m: nbytes(point.nbytes_sent)),
    ]
    if any(point.run_metrics.last_loss is not None for point in comparison.ran):
        columns.append(("last loss", True, lambda point, m: figures.large_number(m.last_loss)))
        reference = next((p for p in comparison.ran if p.weights_difference is not None), None)
        columns.append(
            ("same weights", False, lambda point, m: _same(point, m, point is reference))
        )
    billed = [(p.bill, p.target) for p in comparison.ran if p.bill is not None]
    for name, tell in answers.columns(billed).items():
        columns.append((name, True, partial(_cell_text, tell)))
    if len(world_sizes) == 1 or all(
        point.set.get("cluster.world_size") == point.world_size for point in comparison.ran
    ):
        del columns[0]
    if not any(point.run_metrics.interval_s for point in comparison.ran):
        columns = [column for column in columns if column[0] != INTERVAL]
    heads = [(short_key(key), False) for key in keys] + [(name, num) for name, num, _ in columns]
    rows = []
    for point in comparison.points:
        metrics = point.metrics
        cells = [written(point.set[key]) for key in keys]
        rows.append(
            cells + ["-" if metrics is None else write(point, metrics) for *_, write in columns]
        )
    name = comparison.scenario["name"]
    title = f"{name}: {' x '.join(short_key(key) for key in keys)} compared, times in {unit}"
    return table_of(title, heads, rows, num_keys=len(keys))


def _cell_text(tell: Callable[[answers.Found], str], point: ComparedPoint, metrics: Metrics) -> str:
    return tell((point.bill or {}, point.target))


def remarks(comparison: Comparison) -> list[str]:
    """Explain the columns, and list changes and the reasons of points that could not run."""
    lines = [COMPARE_FOOT]
    if any(point.run_metrics.interval_s for point in comparison.ran):
        lines.append(f"{INTERVAL}: the 90 % interval of the step")
    if any(point.same_weights is not None for point in comparison.ran):
        lines.append(WEIGHTS_FOOT)
    billed = [(p.bill, p.target) for p in comparison.ran if p.bill is not None]
    lines += [f"{row.label}: {row.text}" for row in answers.price(billed)]
    lines += tied(comparison)
    lines += comparison.notes
    lines += _few_that_differ(comparison.ran)
    for point in comparison.points:
        if point.problems:
            more = len(point.problems) - 1
            rest = f" (and {more} more in comparison.json)" if more > 0 else ""
            lines.append(f"{point.label} cannot run: {point.problems[0]}{rest}")
    return lines


def tied(comparison: Comparison) -> list[str]:
    """Name the points that are as fast as the fastest but for noise."""
    ties = [point.label for point in ties_of(comparison.points)]
    if len(ties) < 2:
        return []
    why = "beyond the noise of these steps" if any(p.step_error_s for p in comparison.ran) else ""
    sentence = f"{', '.join(ties[:-1])} and {ties[-1]}: no difference in samples/s {why}".rstrip()
    return [f"{sentence}."]


def _few_that_differ(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the few parameters in which models differ, once for all such models.

    A parameter without effect on the loss, as the bias of attention's keys, has rounding errors for
    gradients, which an adaptive optimizer scales to steps of usual length.
    """
    labels_by_names: dict[tuple[str, ...], list[str]] = {}
    for point in points:
        if 0 < len(point.differing) < FEW * (point.num_parameters or 0):
            labels_by_names.setdefault(tuple(point.differing), []).append(point.label)
    lines = []
    for names, labels in labels_by_names.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        lines.append(
            f"{', '.join(labels)}: other weights in {', '.join(names[:MAX_NAMES])}{more} alone; "
            "where the losses are the same, the model does not feel them, and rounding decides."
        )
    return lines


def _same(point: ComparedPoint, metrics: Metrics, is_first: bool) -> str:
    """Write whether weights equal the first point's, and their distance if not bit-equal."""
    if point.same_weights is None:
        return "-"
    word = "first" if is_first else "yes" if point.same_weights else "no"
    if 0 < len(point.differing) < FEW * (point.num_parameters or 0):
        word = f"all but {len(point.differing)} of {point.num_parameters}"
    word += f" ({point.weights_difference:.0e})" if point.weights_difference else ""
    return word + (", ranks differ" if metrics.replicas_identical is False else "")
