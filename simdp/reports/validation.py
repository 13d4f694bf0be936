"""Rows of validate and calibrate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simdp.reports.figures import TableCell, figure, number, percent, unit_of
from simdp.results.comparison import short_key
from simdp.results.validation import (
    CollectiveComparison,
    ErrorSummary,
    FoldResult,
    LeftOut,
    Means,
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
    said = [
        f"{short_key(key)} {_written(value)}"
        for key, value in chosen.items()
        if key not in leave_out
    ]
    return ", ".join(said)


def in_common(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys that `setting` writes equally for every point."""
    first, *others = chosen
    return [
        key
        for key, value in first.items()
        if all(key in one and _written(one[key]) == _written(value) for one in others)
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
    first = number(low / scale)
    return TableCell(f"{first} ... {high / scale:.4g} {unit}", first.value)


STEP_COLUMNS = (
    Column("scenario", False),
    Column("set", False),
    Column("role", False),
    Column("measured"),
    Column("simulated"),
    Column("90 % interval"),
    Column("error"),
)


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


EXPOSED_COLUMNS = (*STEP_COLUMNS[:5], Column("too long by"))


def exposed_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `EXPOSED_COLUMNS` of steps with a measured exposed part."""
    return [
        [
            *step_cells(point)[:3],
            time(point.exposed_measured),
            time(point.exposed_simulated),
            time(point.exposed_simulated - point.exposed_measured),
        ]
        for point in validation.points
        if point.exposed_measured is not None
    ]


SIZE_COLUMNS = (Column("size"), *STEP_COLUMNS[2:])


def size_cells(row: CollectiveComparison) -> list[str]:
    """Make a row under `SIZE_COLUMNS`."""
    size = TableCell(format_quantity(row.nbytes, "data size"), float(row.nbytes))
    return [size, *step_cells(row)[2:]]


SUMMARY_COLUMNS = (
    Column("cluster", False),
    Column("points"),
    Column("predicted"),
    Column("mean error"),
    Column("worst"),
    Column("noise"),
    Column("tau"),
    Column("inside"),
    Column("linear"),
    Column("ring"),
)


def summary_cells(found: ErrorSummary) -> list[str]:
    """Make a row under `SUMMARY_COLUMNS`."""
    return [
        found.name,
        number(found.num_points, "d"),
        number(found.num_predicted, "d"),
        percent(found.mean_error),
        percent(found.worst_error),
        percent(found.noise),
        number(found.tau, ".2f"),
        percent(found.inside),
        percent(found.linear_error),
        percent(found.ring_error),
    ]


TABLE_COLUMNS = (
    Column("cluster", False),
    Column("collective", False),
    Column("ranks"),
    Column("sizes"),
    Column("predicted"),
    Column("mean error"),
    Column("worst"),
    Column("from 64 MiB"),
    Column("inside"),
    Column("ring"),
)


def table_cells(found: ErrorSummary, collective: str, ranks: str) -> list[str]:
    """Make a row under `TABLE_COLUMNS`."""
    return [
        found.name,
        collective,
        ranks,
        number(found.num_points, "d"),
        number(found.num_predicted, "d"),
        percent(found.mean_error),
        percent(found.worst_error),
        percent(found.large_error),
        percent(found.inside),
        percent(found.ring_error),
    ]


def summary_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `SUMMARY_COLUMNS`: clusters with their scenarios if several, then all."""
    rows = []
    for cluster in validation.step_summaries():
        rows.append(summary_cells(cluster))
        scenarios = validation.scenario_summaries(cluster.name)
        for found in scenarios if len(scenarios) > 1 else ():
            rows.append([f"- {found.name}", *summary_cells(found)[1:]])
    overall = validation.overall()
    if overall is not None and len(validation.step_summaries()) > 1:
        rows.append(summary_cells(overall))
    return rows


def table_rows(validation: Validation) -> list[list[str]]:
    """Make rows under `TABLE_COLUMNS`: every table, then the means per cluster."""
    found = [
        table_cells(
            summary(rows[0].cluster, rows, validation.noise[rows[0].cluster]),
            table_name(rows),
            number(rows[0].world_size, "d"),
        )
        for rows in validation.tables()
    ]
    means = validation.collective_summaries()
    return found + [table_cells(mean, "mean over tables", "") for mean in means]


def ring_wins(validation: Validation) -> list[str]:
    """Name the clusters and tables that the ring formula predicts better."""
    steps = [(f"steps on {one.name}", one) for one in validation.step_summaries()]
    tables = [
        (
            f"{table_name(rows)} on {rows[0].cluster}, {rows[0].world_size} ranks",
            summary(rows[0].cluster, rows, validation.noise[rows[0].cluster]),
        )
        for rows in validation.tables()
    ]
    return [
        f"{name}: {percent(found.ring_error)} against {percent(found.mean_error)}"
        for name, found in (*steps, *tables)
        if found.loses_to_ring
    ]


def narrow_intervals(validation: Validation) -> list[str]:
    """List where fewer times lie in their 90 % intervals than chance explains."""
    return [
        f"{one.what}: {one.inside} of {one.num_points} ({percent(one.share)}) lie in their 90 % "
        f"interval; {NARROW}"
        for one in validation.coverages()
        if one.is_too_low
    ]


def table_name(rows: Sequence[CollectiveComparison]) -> str:
    """Name a table by its collective and its settings."""
    said = setting(rows[0].set, leave_out=["cluster.world_size"])
    return f"{rows[0].collective}, {said}" if said else rows[0].collective


NARROW = "fewer than chance explains (binomial test, 5 %): intervals are too narrow"
RING_WINS = "The ring formula is nearer, by more than the noise"

EXPLAINED = (
    "Errors are absolute, of predicted points alone. noise: what no model can be better than. "
    "tau: Kendall's, over pairs of steps that differ by more than the noise. inside: measured "
    "times in their 90 % interval. linear, ring: errors of two naive predictors, linear scaling "
    "from the fewest ranks, and simulated compute plus a ring all_reduce at the links' bandwidth; "
    "for collectives the ring's formula by itself."
)


FOLD_COLUMNS = (
    Column("left out", False),
    Column("points"),
    Column("mean error"),
    Column("worst"),
    Column("tau"),
    Column("inside"),
    Column("width"),
    Column("fitted"),
)

TITLES = {"steps": "Step times", "collectives": "Collectives"}


def titles(found: LeftOut) -> list[tuple[str, list[list[str]]]]:
    """Make titled rows under `FOLD_COLUMNS`, for steps and for collectives."""
    tables = []
    for means in found.means():
        rows = [fold_cells(fold) for fold in found.folds if fold.kind == means.kind]
        title = f"{TITLES[means.kind]} without their {found.by}"
        tables.append((title, [*rows, mean_cells(means)]))
    return tables


def fold_cells(fold: FoldResult) -> list[str]:
    """Make a row under `FOLD_COLUMNS`."""
    return [
        fold.name,
        number(fold.num_points, "d"),
        percent(fold.mean_error),
        percent(fold.worst_error),
        number(fold.tau, ".2f"),
        percent(fold.inside),
        _factor(fold.width),
        percent(fold.fit_error),
    ]


def mean_cells(means: Means) -> list[str]:
    """Make the last row under `FOLD_COLUMNS`."""
    return [
        f"mean over {means.num_folds} folds" if means.num_folds > 1 else "mean over 1 fold",
        number(means.num_points, "d"),
        percent(means.mean_error),
        "",
        "",
        percent(means.inside),
        _factor(means.width),
        percent(means.fit_error),
    ]


def _factor(width: float | None) -> str:
    return "-" if width is None else f"x {width:.2f}"


LEFT_OUT_EXPLAINED = (
    "Every point is predicted by constants that were fitted without what stands on the left. "
    "Errors are absolute; steps that a workload was made to meet, such as that of one device, do "
    "not count. inside: measured times in their 90 % interval. width: the factor from a "
    "prediction to an end of it. fitted: mean error of the same points with the machine's own "
    "constants."
)
