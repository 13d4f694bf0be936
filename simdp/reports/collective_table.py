"""Tables of collectives for the terminal, with the columns of nccl-tests."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.reports.figures import percent
from simdp.reports.sections import table_of
from simdp.reports.wide_table import wide_table
from simdp.results.collective import CollectiveCurve, CollectivePoint, CollectiveStudy
from simdp.units import format_quantity

# columns of nccl-tests, and their units
HEADS = {
    "size": "(B)",
    "count": "(elements)",
    "type": "",
    "redop": "",
    "root": "",
    "time": "(us)",
    "algbw": "(GB/s)",
    "busbw": "(GB/s)",
}

# measured times of a log, and the simulated time's error
MEASURED_HEADS = {"measured": "(us)", "busbw ": "(GB/s)", "error": "(time)"}
INTERVAL_HEADS = {"90 %": "(us)"}  # 90 % interval of the time, if the constants have one


def tables(study: CollectiveStudy) -> RenderableType:
    """Write a table per curve, with remarks below it."""
    parts: list[RenderableType] = []
    for curve in study.curves:
        parts += [_table(study, curve), *map(Text, _remarks(study, curve))]
    return Group(*parts)


def size(nbytes: float) -> str:
    """Write a size exactly: ``"64 KiB"``."""
    return format_quantity(nbytes, "data size")


def microseconds(seconds: float) -> str:
    """Write a time as nccl-tests does: four digits, or all before the point."""
    us = seconds * 1e6
    return f"{us:.{2 if us < 99.995 else 1 if us < 9999.95 else 0}f}"


def _gigabytes(bandwidth: float | None) -> str:
    return "-" if bandwidth is None else f"{bandwidth / 1e9:.2f}"


def _table(study: CollectiveStudy, curve: CollectiveCurve) -> Table:
    n = curve.world_size
    ranks = f"{n} rank{'s' if n > 1 else ''}"
    title = f"{study.collective}, {curve.algorithm}, on {study.cluster}: {ranks}"
    heads = dict(HEADS)
    if curve.algorithm.startswith("auto"):
        heads["algorithm"] = ""
    if any(point.low is not None for point in curve.points):
        heads |= INTERVAL_HEADS
    if study.against is not None:
        heads |= MEASURED_HEADS
    columns = [(f"{head}\n{unit}", head != "algorithm") for head, unit in heads.items()]
    cells = [_cells(study, point, n) for point in curve.points]
    rows = [[row[head] for head in heads] for row in cells]
    return wide_table(table_of(title, columns, rows), padding=0)


def _cells(study: CollectiveStudy, point: CollectivePoint, world_size: int) -> dict[str, str]:
    nbytes, columns = point.nbytes, study.columns(point.nbytes, world_size)
    cells = {
        "size": str(nbytes),
        **{head: str(value) for head, value in columns.items()},
        "time": microseconds(point.seconds),
        "algbw": _gigabytes(study.algbw(nbytes, point.seconds)),
        "busbw": _gigabytes(study.busbw(nbytes, point.seconds, world_size)),
        "algorithm": point.algorithm,
        "90 %": "-"
        if point.low is None or point.high is None
        else f"{microseconds(point.low)}-{microseconds(point.high)}",
        **dict.fromkeys(MEASURED_HEADS, "-"),
    }
    if point.measured is not None and point.error is not None:
        busbw = _gigabytes(study.busbw(nbytes, point.measured, world_size))
        texts = microseconds(point.measured), busbw, percent(point.error, "+.1f")
        cells |= dict(zip(MEASURED_HEADS, texts, strict=True))
    return cells


def _remarks(study: CollectiveStudy, curve: CollectiveCurve) -> list[str]:
    """List crossovers, errors, coverage, the bottleneck and the engine."""
    lines = [
        f"from {size(crossover.nbytes)} on: {crossover.now} instead of {crossover.before}"
        for crossover in curve.crossovers()
    ]
    errors = curve.errors()
    if errors:
        worst = max(errors, key=lambda nbytes: abs(errors[nbytes]))
        mean = sum(map(abs, errors.values())) / len(errors)
        lines.append(
            f"time against {study.against}: mean error {percent(mean)}, "
            + f"largest {percent(errors[worst], '+.1f')} at {size(worst)}"
        )
    held = curve.held()
    if held:
        lines.append(f"inside the 90 % interval: {sum(held)} of {len(held)}")
    last = curve.points[-1]
    if last.bottleneck is not None:
        name, busy = last.bottleneck
        at = f" at {size(last.nbytes)}" if last.nbytes else ""
        lines.append(f"bottleneck{at}: {name}, busy {percent(busy)} of the time")
    lines.append(f"clock: {last.fabric}")
    return [*lines, *curve.remarks]
