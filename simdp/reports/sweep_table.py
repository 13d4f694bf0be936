"""Table of a sweep for the terminal: a row per point, within the width of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.reports import answer_rows, figures, money_rows, verdicts
from simdp.reports.figures import SHORT, WIDTH
from simdp.reports.wide_table import widen
from simdp.results.comparison import best_of, said_of, written
from simdp.results.result import FailedPoint, Result, Study

LEAST_SHARE = 1e-3
"""Part of a step below which a column is left out."""

LEAST_DIFFERENCE = 0.01
"""Part by which peaks of memory differ in a table that shows them."""

SPARE = (
    *("samples/s", "update", "wait", "other", "compute", "eff.", "MFU"),
    *("skipped", "tok/s/GPU", "memory", "90 %"),
)
"""Columns that a wide table can do without, in the order in which they go."""

RATE = "throughput_samples_per_s"

FOLDED_FOR, FOLDED_KEY = ("tok/s/GPU", "memory"), 24
"""Columns that stay if long values of keys, broken at so many letters, leave room for them."""

LONG_SAMPLE = 1000
"""Tokens of a sample from which on tokens are counted, not samples."""

MAX_FAILED = 10
"""Points that failed whose reasons stand below the table."""

LEAST_KEY = 10
"""Columns of a terminal that the values of a key have at least, however many others there are."""

INTERVAL = "90 %"
"""Head of the column of a step's 90 % interval."""

FOOT = "speed-up: {} over the first point's; * the fastest point"


def sweep_table(study: Study, verbose: bool = False) -> RenderableType:
    """Write a row per point; columns in which next to nothing happens are left out."""
    num_keys, cells = sweep_cells(study)
    heads = [*cells][:num_keys]
    for name in SPARE:
        folded = heads if name in FOLDED_FOR else []
        if _width(cells, folded, FOLDED_KEY) >= WIDTH:
            cells.pop(name, None)
    table = Table(title=Text(sweep_title(study)), box=box.SIMPLE_HEAD, padding=0)
    room = _room_for_keys(cells, num_keys)
    for place, head in enumerate(cells):
        is_key = place < num_keys
        table.add_column(
            Text(head),
            justify="left" if is_key else "right",
            no_wrap=not is_key,
            overflow="fold",
            max_width=room.get(head),
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    widen(table)
    foot, rows = sweep_feet(study, verbose)
    rows = [*answer_rows.verdict(sweep_verdict(study).lines), *rows]
    feet = [foot] * bool(foot) + [answer_rows.lines(rows, WIDTH)] * bool(rows)
    return Group(table, *map(Text, feet))


def sweep_title(study: Study) -> str:
    """Name a sweep, and say in which unit its times are."""
    unit, _ = figures.unit_of(p.metrics["step_time_s"] for p in study.points)
    more = ", and its 90 % interval" if has_intervals(study) else ""
    return f"{study.scenario['name']}: a step's time in {unit}, mean over ranks{more}"


def has_intervals(study: Study) -> bool:
    """Whether the 90 % interval of a point's step is known."""
    return any(p.metrics.get("interval_s") for p in study.points)


def sweep_cells(study: Study) -> tuple[int, dict[str, list[str]]]:
    """Columns of a sweep by their heads, those of its keys first; and how many these are."""
    points, keys = study.points, list(study.scenario["sweep"])
    columns = _columns(study)
    short = [key.rpartition(".")[2] for key in keys]
    heads = short if len({*short, *columns}) == len(short) + len(columns) else keys
    cells = {
        head: [written(p.set[key]) for p in points] for head, key in zip(heads, keys, strict=True)
    }
    cells |= {name: [write(p.metrics) for p in points] for name, write in columns.items()}
    billed = _billed(study)
    for name, tell in money_rows.columns(billed).items():
        cells[name] = [tell(one) for one in billed]
    best, rates, _ = best_point(study)
    if best is not None:
        cells["speed-up"] = [
            figures.speedup(rate, rates[0], number == best) for number, rate in enumerate(rates)
        ]
    return len(keys), cells


def best_point(study: Study) -> tuple[int | None, list[float | None], str]:
    """Find the fastest point; all rates, and their unit: tokens where samples differ in length."""
    points = study.points
    unequal = _differ_in_length(points)
    rates = [p.metrics["tokens_per_s" if unequal else RATE] for p in points]
    best = best_of([p.metrics | {RATE: rate} for p, rate in zip(points, rates, strict=True)])
    return best, rates, "tokens/s" if unequal else "samples/s"


def sweep_verdict(study: Study) -> verdicts.Verdict:
    """What the best point of a sweep reaches and loses; see `simdp.reports.verdicts`."""
    return verdicts.of_sweep(study, *best_point(study))


def sweep_feet(study: Study, verbose: bool = False) -> tuple[str, list[answer_rows.Row]]:
    """What stands below a sweep's table: what its speed-ups are, and what is said of all points."""
    points = study.points
    best, _, unit = best_point(study)
    rows = [*money_rows.price(_billed(study)), *_idle_cards(points)]
    rows += answer_rows.known(points, verbose)
    rows += _failures(study.failed)
    return (FOOT.format(unit) + _among(points)) if best is not None else "", rows


def _billed(study: Study) -> list[money_rows.Found]:
    return [(p.cost, p.target) for p in study.points] if _is_billed(study) else []


def _is_billed(study: Study) -> bool:
    """Whether the scenario, or one of its points, speaks of money, energy or a target."""
    return any(map(money_rows.is_asked_for, [study.scenario, *(p.scenario for p in study.points)]))


def _failures(failed: Sequence[FailedPoint]) -> list[answer_rows.Row]:
    """Say of points without a result why they have none."""
    rows = [
        (f"{said_of(point.set)} failed", f"{point.problems[0]}{_more(len(point.problems) - 1)}")
        for point in failed[:MAX_FAILED]
    ]
    left = len(failed) - MAX_FAILED
    return rows + ([("failed", f"{left} more points, see result.json")] if left > 0 else [])


def _more(count: int) -> str:
    return f" (and {count} more in result.json)" if count else ""


def _idle_cards(points: Sequence[Result]) -> list[answer_rows.Row]:
    """Say of the first point that leaves most cards of a node idle that it does."""
    for point in points:
        for name, said in answer_rows.cards(point):
            values = ", ".join(map(written, point.set.values()))
            return [(f"{name} at {values}", said)]
    return []


def _among(points: Sequence[Result]) -> str:
    """What the best point is the best of."""
    return "" if all(p.metrics["fits_memory"] for p in points) else " that fits"


def _columns(study: Study) -> dict[str, Callable[[dict[str, Any]], str]]:
    points = study.points
    longest = max(p.metrics["step_time_s"] for p in points)
    _, scale = figures.unit_of([longest])
    digits = figures.digits_of(longest / scale)
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        name: partial(_scaled, key, scale, digits)
        for key, name in SHORT.items()
        if any(p.metrics[key] > LEAST_SHARE * p.metrics["step_time_s"] for p in points)
    }
    if has_intervals(study):
        step = columns.pop(SHORT["step_time_s"])
        ends = {INTERVAL: lambda m: figures.interval(m["interval_s"], scale)}
        columns = {SHORT["step_time_s"]: step, **ends, **columns}
    if all(_are_long(p.metrics) for p in points):
        columns["tok/s/GPU"] = lambda m: f"{m['tokens_per_s_per_gpu']:,.0f}"
        if all(p.metrics["mfu"] is not None for p in points):
            columns["MFU"] = lambda m: figures.percent(m["mfu"])
    else:
        columns["samples/s"] = lambda m: figures.short(m[RATE])
    peaks = [max(p.metrics["peak_memory_bytes"]) for p in points]
    if max(peaks) > (1 + LEAST_DIFFERENCE) * min(peaks):
        columns["memory"] = lambda m: figures.nbytes(max(m["peak_memory_bytes"]))
    if not all(p.metrics["fits_memory"] for p in points):
        columns["fits"] = lambda m: "yes" if m["fits_memory"] else "no"
    if any(p.metrics["scaling_efficiency"] is not None for p in points):
        columns["eff."] = lambda m: figures.percent(m["scaling_efficiency"])
    if any(p.metrics["loss"] for p in points):
        columns["last loss"] = lambda m: figures.number(m["loss"][-1] if m["loss"] else None)
    if any(p.metrics["skipped_steps"] for p in points):
        columns["skipped"] = lambda m: str(len(m["skipped_steps"] or []))
    return columns


def _differ_in_length(points: Sequence[Result]) -> bool:
    """Tell whether samples of some points have more tokens than those of others."""
    tokens = [(p.metrics.get("tokens_per_s") or 0.0) / (p.metrics[RATE] or 1.0) for p in points]
    return min(tokens) > 0 and max(tokens) > (1 + LEAST_DIFFERENCE) * min(tokens)


def _are_long(metrics: dict[str, Any]) -> bool:
    """Tell whether samples are of so many tokens that rates are told in tokens."""
    tokens, samples = metrics.get("tokens_per_s"), metrics[RATE]
    return bool(tokens and samples and tokens >= LONG_SAMPLE * samples)


def _scaled(key: str, scale: float, digits: str, metrics: dict[str, Any]) -> str:
    return f"{metrics[key] / scale:{digits}}" if metrics[key] else "0"


def _longest(head: str, cells: Sequence[str]) -> int:
    return max(map(len, [head, *cells]))


def _width(cells: dict[str, list[str]], keys: Sequence[str] = (), longest: int = 0) -> int:
    """Columns that a table takes, if values of some keys are broken at so many letters."""
    widths = {head: _longest(head, column) for head, column in cells.items()}
    return sum(1 + (min(n, longest) if head in keys else n) for head, n in widths.items())


def _room_for_keys(cells: dict[str, list[str]], num_keys: int) -> dict[str, int]:
    """How wide the values of keys may be, the longest cut first, so that all fits; else nothing."""
    room = {head: _longest(head, cells[head]) for head in list(cells)[:num_keys]}
    excess = _width(cells) - (WIDTH - 1)
    while excess > 0:
        head = max(room, key=lambda name: room[name])
        if room[head] <= LEAST_KEY:
            break
        room[head] -= 1
        excess -= 1
    return room
