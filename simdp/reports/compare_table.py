"""Table of a comparison for the terminal: a row per point, and what explains the rows below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import fill
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.reports import money_rows
from simdp.reports.figures import WIDTH, interval, nbytes, speedup, unit_of
from simdp.reports.sweep_table import INTERVAL
from simdp.reports.wide_table import narrow_tables
from simdp.results.comparison import ComparedPoint, Comparison, best_of, short_key, ties_of, written

FOOT = (
    "a steady step: its time and exposed communication, mean over ranks; the fullest device's "
    "memory; what the rank that sends most sends; speed-up: samples/s over the first point's, with "
    "a star at the most, of what fits"
)
"""What the columns are."""

WEIGHTS_FOOT = (
    "same weights: rank 0's beside the first point's, but for rounding; in brackets the "
    "largest difference over the largest weight of its parameter"
)
"""What the column of weights is."""

FEW, MAX_NAMES = 0.5, 2
"""Part of the parameters, fewer than which are named if only they differ; names in a line."""


def table(comparison: Comparison) -> RenderableType:
    """Write the points side by side.

    Parameters
    ----------
    comparison : Comparison
        With at least one point that ran.
    """
    title, heads, rows = grid(comparison)
    tables = narrow_tables(title, heads, rows, len(comparison.over))
    return Group(*tables, *(Text(_filled(line)) for line in remarks(comparison)))


def grid(comparison: Comparison) -> tuple[str, list[tuple[str, bool]], list[list[str]]]:
    """Title, columns and rows: a row per point, the keys that are compared first.

    A column is its head, and whether it holds figures.
    """
    unit, scale = unit_of((point.metrics or {})["step_time_s"] for point in comparison.ran)
    rates = [(p.metrics or {}).get("throughput_samples_per_s") for p in comparison.points]
    first, best = next(filter(None, rates), None), best_of([p.metrics for p in comparison.points])
    keys, world_sizes = list(comparison.over), {point.world_size for point in comparison.ran}
    columns: list[tuple[str, bool, Callable[[ComparedPoint, dict[str, Any]], str]]] = [
        ("ranks", True, lambda point, m: str(point.world_size)),
        ("step", True, lambda point, m: f"{m['step_time_s'] / scale:.4g}"),
        (INTERVAL, True, lambda point, m: interval(m.get("interval_s"), scale)),
        ("samples/s", True, lambda point, m: _number(m["throughput_samples_per_s"])),
        (
            "speed-up",
            True,
            lambda point, m: speedup(
                m["throughput_samples_per_s"],
                first,
                best is not None and point is comparison.points[best],
            ),
        ),
        ("exposed", True, lambda point, m: f"{m['exposed_comm_s'] / scale:.4g}"),
        ("memory", True, lambda point, m: nbytes(point.device_bytes or 0.0)),
        ("fits", False, lambda point, m: "yes" if m["fits_memory"] else "no"),
        ("sent", True, lambda point, m: nbytes(point.nbytes_sent)),
    ]
    if any(point.last_loss is not None for point in comparison.ran):
        columns.append(("last loss", True, lambda point, m: _number(point.last_loss)))
        reference = next((p for p in comparison.ran if p.weights_difference is not None), None)
        columns.append(
            (
                "same weights",
                False,
                lambda point, m: _same(point, m, point is reference),
            )
        )
    billed = [(p.bill, p.target) for p in comparison.ran if p.bill is not None]
    for name, tell in money_rows.columns(billed).items():
        columns.append((name, True, partial(_told, tell)))
    if len(world_sizes) == 1 or all(
        point.set.get("cluster.world_size") == point.world_size for point in comparison.ran
    ):
        del columns[0]
    if not any((point.metrics or {}).get("interval_s") for point in comparison.ran):
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
    return title, heads, rows


def _told(
    tell: Callable[[money_rows.Found], str], point: ComparedPoint, metrics: dict[str, Any]
) -> str:
    return tell((point.bill or {}, point.target))


def _filled(text: str) -> str:
    """Break a line between words, at a terminal's width."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def remarks(comparison: Comparison) -> list[str]:
    """Say what the columns mean, what was changed, and why points could not run."""
    lines = [FOOT]
    if any((point.metrics or {}).get("interval_s") for point in comparison.ran):
        lines.append(f"{INTERVAL}: the 90 % interval of the step")
    if any(point.same_weights is not None for point in comparison.ran):
        lines.append(WEIGHTS_FOOT)
    billed = [(p.bill, p.target) for p in comparison.ran if p.bill is not None]
    lines += [f"{name}: {said}" for name, said in money_rows.price(billed)]
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
    """Points that train samples as fast as the fastest one but for noise, in a sentence."""
    ties = [point.label for point in ties_of(comparison.points)]
    if len(ties) < 2:
        return []
    why = "beyond the noise of these steps" if any(p.step_error_s for p in comparison.ran) else ""
    said = f"{', '.join(ties[:-1])} and {ties[-1]}: no difference in samples/s {why}".rstrip()
    return [f"{said}."]


def _few_that_differ(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the parameters in which models differ that agree in most, once for all such models.

    What the loss does not feel, as the bias of attention's keys, has rounding for a gradient, and
    an adaptive optimizer makes of it steps as long as any.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for point in points:
        if 0 < len(point.differing) < FEW * (point.num_parameters or 0):
            found.setdefault(tuple(point.differing), []).append(point.label)
    lines = []
    for names, labels in found.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        lines.append(
            f"{', '.join(labels)}: other weights in {', '.join(names[:MAX_NAMES])}{more} alone; "
            "where the losses are the same, the model does not feel them, and rounding decides."
        )
    return lines


def _same(point: ComparedPoint, metrics: dict[str, Any], is_first: bool) -> str:
    """Tell whether weights are those of the first point, and if not to the bit how far apart."""
    if point.same_weights is None:
        return "-"
    word = "first" if is_first else "yes" if point.same_weights else "no"
    if 0 < len(point.differing) < FEW * (point.num_parameters or 0):
        word = f"all but {len(point.differing)} of {point.num_parameters}"
    word += f" ({point.weights_difference:.0e})" if point.weights_difference else ""
    return word + (", ranks differ" if metrics["replicas_identical"] is False else "")


def _number(value: float | None) -> str:
    """Write a number with four digits, a large one with its thousands apart."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"
