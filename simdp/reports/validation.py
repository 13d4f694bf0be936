"""Rows of validate and calibrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simdp.keys import short_key
from simdp.reports.figures import TableCell, figure, number, percent, unit_of
from simdp.results.validation import (
    CollectiveComparison,
    ErrorSummary,
    FoldResult,
    LeftOut,
    Means,
    MemoryComparison,
    StepComparison,
    TimeComparison,
    Validation,
    summary,
)
from simdp.units import format_quantity

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
NO_TARGET = 0.10  # default error above which a point counts as missed


class Column(NamedTuple):
    """A column of a table."""

    head: str
    is_number: bool = True


def setting(chosen: Mapping[str, Any], leave_out: Sequence[str] = ()) -> str:
    """Write the keys that a point sets: ``"world_size 8, overlap false"``.

    Mappings are written as their kind with their plain options.
    """
    settings = [
        f"{short_key(key)} {_written(value)}".rstrip()
        for key, value in chosen.items()
        if key not in leave_out
    ]
    return ", ".join(settings)


def in_common(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys that `setting` writes equally for every point."""
    first, *others = chosen
    return [
        key
        for key, value in first.items()
        if all(key in other and _written(other[key]) == _written(value) for other in others)
    ]


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, Mapping):
        rest = [
            f"{key} {_written(inner)}"
            for key, inner in value.items()
            if key != "kind" and not isinstance(inner, Mapping | list)
        ]
        kind = str(value.get("kind", ""))
        return f"{kind}({', '.join(rest)})" if rest else kind
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def time(seconds: float) -> TableCell:
    """Write a time with four digits, in microseconds at least."""
    unit, scale = unit_of([abs(seconds)], UNITS)
    return figure(seconds / scale, ".4g", f" {unit}", scale)


def interval(low: float, high: float) -> TableCell:
    """Write an interval of times, in the unit of its upper end."""
    unit, scale = unit_of([high], UNITS)
    first = figure(low / scale, ".4g", "", scale)
    return TableCell(f"{first} ... {high / scale:.4g} {unit}", first.value)


def columns(num_texts: int, *heads: str) -> tuple[Column, ...]:
    """Make columns, those of texts first."""
    return tuple(Column(head, place >= num_texts) for place, head in enumerate(heads))


_TIMES = ("role", "measured", "simulated", "90 % interval", "error")
STEP_COLUMNS = columns(3, "scenario", "set", *_TIMES)


def step_cells(point: TimeComparison) -> list[str]:
    """Make a row under `STEP_COLUMNS`."""
    return [
        point.scenario,
        setting(point.set) or "-",
        point.role,
        time(point.measured),
        time(point.simulated),
        interval(point.low, point.high),
        percent(point.error, "+.1f"),
    ]


MEMORY_COLUMNS = (
    *(Column(head, False) for head in ("scenario", "set", "kind")),
    *(Column(head) for head in ("ranks", "measured", "simulated", "90 % interval", "error")),
    Column("fits", False),
)


def memory_cells(peak: MemoryComparison, leave_out: Sequence[str]) -> list[str]:
    """Make a row under `MEMORY_COLUMNS` without its scenario, and without some settings."""
    return [
        setting(peak.set, leave_out) or "-",
        peak.kind,
        number(peak.world_size, "d"),
        "out of memory" if peak.measured is None else _gigabytes(peak.measured),
        _gigabytes(peak.simulated),
        TableCell(f"{peak.low / 1e9:.4g} ... {peak.high / 1e9:.4g} GB", peak.low / 1e9),
        "-" if peak.error is None else percent(peak.error, "+.1f"),
        peak.fits,
    ]


def memory_rows(validation: Validation) -> list[list[str]]:
    """Rows under `MEMORY_COLUMNS`."""
    return [
        [peak.scenario, *memory_cells(peak, ["cluster.world_size"])] for peak in validation.memory
    ]


def _gigabytes(nbytes: float) -> TableCell:
    return figure(nbytes / 1e9, ".4g", " GB", 1e9)


def refused_steps(validation: Validation) -> list[str]:
    """Lines on measured steps that would not fit their device, by scenario."""
    counts = Counter(point.scenario for point in validation.not_fitting())
    return [
        f"{name}: {count} of {sum(p.scenario == name for p in validation.points)} steps"
        for name, count in counts.items()
    ]


POINT_COLUMNS = (
    Column("set", False),
    Column("ranks"),
    Column("role", False),
    *STEP_COLUMNS[3:],
    Column("inside", False),
)
"""Columns of a terminal, below the name of the scenario."""


def point_cells(point: TimeComparison, leave_out: Sequence[str]) -> list[str]:
    """Make a row under `POINT_COLUMNS`, without some keys of the point's settings."""
    return [
        setting(point.set, leave_out) or "-",
        number(point.world_size, "d"),
        *step_cells(point)[2:],
        "yes" if point.is_inside else "no",
    ]


def needless_keys(points: Sequence[TimeComparison | MemoryComparison]) -> list[str]:
    """List keys of a scenario's points that do not tell these apart, beside their ranks.

    The number of ranks, and keys in common, are needless; compute, and a single device's strategy,
    only where points differ without them.
    """
    keys = ["cluster.world_size"]
    keys += in_common([point.set for point in points]) if len(points) > 1 else []
    compute = {key for point in points for key in point.set if key.startswith("workload.compute")}
    ranks = {point.world_size for point in points if "strategy" in point.set}
    for more in (sorted(compute), ["strategy"] if ranks == {1} else []):
        if _num_distinct(points, keys + more) == _num_distinct(points, keys):
            keys += more
    return keys


def _num_distinct(
    points: Sequence[TimeComparison | MemoryComparison], leave_out: Sequence[str]
) -> int:
    return len({(point.world_size, setting(point.set, leave_out)) for point in points})


NOT_COMPARED_COLUMNS = tuple(Column(head, False) for head in ("file", "point", "reason"))


def not_compared_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `NOT_COMPARED_COLUMNS`, of wrong files and points."""
    return [[row.file, row.point or "-", row.reason] for row in validation.not_compared]


def not_compared_summary(validation: Validation) -> list[str]:
    """Count the wrong files and points in a line; empty if there are none."""
    points = sum(row.point is not None for row in validation.not_compared)
    counts = ((len(validation.not_compared) - points, "file"), (points, "point"))
    counted = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
    return [f"not compared, since wrong: {' and '.join(counted)}; report.md lists them"] * bool(
        counted
    )


def memory_summary(validation: Validation) -> list[str]:
    """Lines on the errors of peaks of memory, and on measured steps that would not fit."""
    lines, error = list[str](), validation.memory_error()
    if error is not None:
        peaks = [peak for peak in validation.memory if peak.measured is not None]
        inside = sum(peak.is_inside for peak in peaks)
        lines.append(
            f"memory: {percent(error)} off in the mean of {len(peaks)} peaks; {inside} lie in "
            "their 90 % interval"
        )
    refused = [peak for peak in validation.memory if peak.measured is None]
    if refused:
        right = sum(peak.is_inside for peak in refused)
        lines.append(f"out of memory: {right} of {len(refused)} runs are refused")
    if validation.points:
        count = len(validation.not_fitting())
        lines.append(
            f"fit: {count} of {len(validation.points)} measured steps would not fit their device"
        )
    return lines


EXPOSED_COLUMNS = (*POINT_COLUMNS[:5], Column("too long by"))


def exposed_cells(point: StepComparison, leave_out: Sequence[str]) -> list[str]:
    """Make a row under `EXPOSED_COLUMNS` of a step with a measured exposed part."""
    measured, simulated = point.exposed_measured or 0.0, point.exposed_simulated
    times = time(measured), time(simulated), time(simulated - measured)
    return [*point_cells(point, leave_out)[:3], *times]


SIZE_COLUMNS = (Column("size"), *STEP_COLUMNS[2:])


def size_cells(row: CollectiveComparison) -> list[str]:
    """Make a row under `SIZE_COLUMNS`."""
    size = TableCell(format_quantity(row.nbytes, "data size"), float(row.nbytes))
    return [size, *step_cells(row)[2:]]


_ERRORS = ("predicted", "mean error", "worst")
SUMMARY_COLUMNS = columns(
    1, "cluster", "points", *_ERRORS, "noise", "tau", "inside", "linear", "ring"
)
TABLE_COLUMNS = columns(
    2, "cluster", "collective", "ranks", "sizes", *_ERRORS, "from 64 MiB", "inside", "ring"
)


def summary_cells(errors: ErrorSummary) -> list[str]:
    """Make a row under `SUMMARY_COLUMNS`."""
    noise, tau = percent(errors.noise), number(errors.tau, ".2f")
    naive = percent(errors.linear_error), percent(errors.ring_error)
    return [errors.name, *_errors(errors), noise, tau, percent(errors.inside), *naive]


def table_cells(errors: ErrorSummary, collective: str, ranks: str) -> list[str]:
    """Make a row under `TABLE_COLUMNS`."""
    rest = map(percent, (errors.large_error, errors.inside, errors.ring_error))
    return [errors.name, collective, ranks, *_errors(errors), *rest]


def _errors(errors: ErrorSummary) -> list[str]:
    counts = number(errors.num_points, "d"), number(errors.num_predicted, "d")
    return [*counts, percent(errors.mean_error), percent(errors.worst_error)]


def summary_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `SUMMARY_COLUMNS`: clusters with their scenarios if several, then all."""
    rows = []
    for cluster in validation.step_summaries():
        rows.append(summary_cells(cluster))
        scenarios = validation.scenario_summaries(cluster.name)
        for errors in scenarios if len(scenarios) > 1 else ():
            rows.append([f"- {errors.name}", *summary_cells(errors)[1:]])
    overall = validation.overall()
    if overall is not None and len(validation.step_summaries()) > 1:
        rows.append(summary_cells(overall))
    return rows


def table_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `TABLE_COLUMNS`: every table, then the means per cluster."""
    cells = [
        table_cells(_summary(validation, rows), table_name(rows), number(rows[0].world_size, "d"))
        for rows in validation.tables()
    ]
    means = validation.collective_summaries()
    return cells + [table_cells(mean, "mean over tables", "") for mean in means]


def _summary(validation: Validation, rows: Sequence[CollectiveComparison]) -> ErrorSummary:
    return summary(rows[0].cluster, rows, validation.noise[rows[0].cluster])


def ring_wins(validation: Validation) -> list[str]:
    """Name the clusters and tables that the ring formula predicts better."""
    steps = [(f"steps on {errors_of.name}", errors_of) for errors_of in validation.step_summaries()]
    tables = [
        (
            f"{table_name(rows)} on {rows[0].cluster}, {rows[0].world_size} ranks",
            _summary(validation, rows),
        )
        for rows in validation.tables()
    ]
    return [
        f"{name}: {percent(errors.ring_error)} against {percent(errors.mean_error)}"
        for name, errors in (*steps, *tables)
        if errors.loses_to_ring
    ]


def narrow_intervals(validation: Validation) -> list[str]:
    """List where fewer times lie in their 90 % intervals than chance explains."""
    return [
        f"{coverage.what}: {coverage.inside} of {coverage.num_points} ({percent(coverage.share)}) "
        f"lie in their 90 % interval; {NARROW}"
        for coverage in validation.coverages()
        if coverage.is_too_low
    ]


def table_name(rows: Sequence[CollectiveComparison]) -> str:
    """Name a table by its collective and its settings."""
    settings = setting(rows[0].set, leave_out=["cluster.world_size"])
    return f"{rows[0].collective}, {settings}" if settings else rows[0].collective


NARROW = "fewer than chance explains (binomial test, 5 %): intervals are too narrow"
RING_WINS = "The ring formula is nearer, by more than the noise"

EXPLAINED = (
    "Errors are absolute, of predicted points alone. noise: what no model can be better than. "
    "tau: Kendall's, over pairs of steps that differ by more than the noise. inside: measured "
    "times in their 90 % interval. linear, ring: errors of two naive predictors, linear scaling "
    "from the fewest ranks, and simulated compute plus a ring all_reduce at the links' bandwidth; "
    "for collectives the ring's formula by itself."
)


FOLD_COLUMNS = columns(
    1, "left out", "points", "mean error", "worst", "tau", "inside", "width", "fitted"
)
TITLES = {"steps": "Step times", "collectives": "Collectives"}


def titles(left_out: LeftOut) -> list[tuple[str, list[list[str]]]]:
    """Make titled rows under `FOLD_COLUMNS`, for steps and for collectives."""
    tables = []
    for means in left_out.means():
        rows = [fold_cells(fold) for fold in left_out.folds if fold.kind == means.kind]
        title = f"{TITLES[means.kind]} without their {left_out.by}"
        tables.append((title, [*rows, fold_cells(means)]))
    return tables


def fold_cells(fold: FoldResult | Means) -> list[str]:
    """Make a row under `FOLD_COLUMNS`."""
    if isinstance(fold, Means):
        name = f"mean over {fold.num_folds} fold{'s' * (fold.num_folds > 1)}"
        rest = ["", ""]
    else:
        name, rest = fold.name, [percent(fold.worst_error), number(fold.tau, ".2f")]
    width = "-" if fold.width is None else f"x {fold.width:.2f}"
    errors = number(fold.num_points, "d"), percent(fold.mean_error)
    return [name, *errors, *rest, percent(fold.inside), width, percent(fold.fit_error)]


LEFT_OUT_EXPLAINED = (
    "Every point is predicted by constants that were fitted without what stands on the left. "
    "Errors are absolute; steps that a workload was made to meet, such as that of one device, do "
    "not count. inside: measured times in their 90 % interval. width: the factor from a "
    "prediction to an end of it. fitted: mean error of the same points with the machine's own "
    "constants."
)
