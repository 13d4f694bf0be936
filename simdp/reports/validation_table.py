"""Tables and pages of validate and calibrate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.arrays import grouped
from simdp.reports import validation as words
from simdp.reports.charts import fitting
from simdp.reports.figures import WIDTH, percent, sentence
from simdp.reports.sections import markdown_table as _table
from simdp.reports.sections import table_of
from simdp.reports.validation import Column
from simdp.reports.wide_table import RowGroup, filled, fitted_table, wide_table
from simdp.results.calibration import CalibrationStudy, StepCalibration, TableScenarios, WantedStep
from simdp.results.metrics import Baseline
from simdp.results.validation import (
    LeftOut,
    MemoryComparison,
    StepComparison,
    Validation,
    summary,
)
from simdp.units import format_quantity


def validation_tables(validation: Validation, width: int = WIDTH) -> RenderableType:
    """Write a table per cluster, then summaries, as wide as a terminal."""
    drawn = _Drawing(width)
    for name in validation.clusters:
        points = validation.of(name).points
        if points:
            drawn.points(name, words.POINT_COLUMNS, points, words.point_cells)
        exposed = [point for point in points if point.exposed_measured is not None]
        if exposed:
            title = f"{name}: waiting for gradients when backward is over"
            drawn.points(title, words.EXPOSED_COLUMNS, exposed, words.exposed_cells)
    steps = words.summary_rows(validation)
    if steps:
        drawn.table("Step times", words.SUMMARY_COLUMNS, [RowGroup("", steps)])
    collectives = words.table_rows(validation)
    if collectives:
        drawn.table("Collectives", words.TABLE_COLUMNS[1:], _by_first_cell(collectives))
    if validation.memory:
        drawn.points("Peak memory", words.MEMORY_COLUMNS[1:], validation.memory, words.memory_cells)
    wins = words.ring_wins(validation)
    if wins:
        drawn.parts += [Text(f"{words.RING_WINS}:"), filled(wins, "  ")]
    lines = [*words.narrow_intervals(validation), *words.memory_summary(validation)]
    lines += words.not_compared_summary(validation)
    drawn.parts += [filled([sentence(line)]) for line in lines]
    drawn.parts += [filled([line], "  ") for line in words.refused_steps(validation)]
    drawn.parts.append(filled(words.EXPLAINED.splitlines()))
    return drawn.done()


def fold_tables(left_out: LeftOut, width: int = WIDTH) -> RenderableType:
    """Write the cross-validation folds of steps and of collectives, as wide as a terminal."""
    drawn = _Drawing(width)
    for title, rows in words.titles(left_out):
        drawn.table(title, words.FOLD_COLUMNS, [RowGroup("", rows)])
    drawn.parts += [filled([sentence(line)]) for line in words.not_compared_summary(left_out.whole)]
    drawn.parts.append(filled([words.LEFT_OUT_EXPLAINED]))
    return drawn.done()


OPTIONAL = ("sizes", "from 64 MiB", "points", "noise", "linear", "tau", "predicted")
"""Columns of summaries that a narrow terminal lacks, in the order in which they are left out."""

OPTIONAL_OF_POINTS = ("kind", "inside", "90 % interval")  # as `OPTIONAL`, of points


P = TypeVar("P", StepComparison, MemoryComparison)


class _Drawing:
    """Tables for a terminal, and the columns that it has no room for."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.parts: list[RenderableType] = []
        self.left_out: dict[str, None] = {}

    def table(
        self,
        title: str,
        columns: Sequence[Column],
        groups: Sequence[RowGroup],
        optional: Sequence[str] = OPTIONAL,
    ) -> None:
        heads = [column.head for column in columns]
        optional = [head for head in optional if head in heads]
        table, left_out = fitted_table(title, columns, groups, optional, self.width)
        self.parts.append(table)
        self.left_out |= dict.fromkeys(left_out)

    def points(
        self,
        title: str,
        columns: Sequence[Column],
        points: Sequence[P],
        cells: Callable[[P, Sequence[str]], list[str]],
    ) -> None:
        groups = list[RowGroup]()
        for name, group in grouped((point.scenario, point) for point in points).items():
            keys = words.needless_keys(group)
            groups.append(RowGroup(name, [cells(point, keys) for point in group]))
        self.table(title, columns, groups, OPTIONAL_OF_POINTS)

    def done(self) -> RenderableType:
        if self.left_out:
            sentence = f"Not shown in {self.width} columns: {', '.join(self.left_out)}"
            self.parts.append(filled([f"{sentence}; report.md has more."]))
        return Group(*self.parts)


def _by_first_cell(rows: Iterable[Sequence[str]]) -> list[RowGroup]:
    """Group rows by their first cell, which becomes the line above them."""
    groups = grouped((first, rest) for first, *rest in rows)
    return [RowGroup(name, group) for name, group in groups.items()]


# Validation page ----------------------------------------------------------------------------------


def page(
    validation: Validation,
    pictures: Mapping[str, str],
    target: float,
    left_out: LeftOut | None = None,
) -> str:
    """Write the Markdown page.

    ``pictures`` has captions by file beside the page, ``target`` is the error above which a
    predicted point is missed, and ``left_out`` adds cross-validation.
    """
    parts = [
        "# Measured and simulated times\n",
        *(() if left_out is None else _folds(left_out)),
        *_summaries(validation),
        *(f"![{shows}]({file})\n" for file, shows in pictures.items()),
        *_misses(validation, target),
        *_lost(validation),
        *_points(validation),
        *_tables(validation),
        *_excluded(validation),
        *_not_compared(validation),
        "## Sources\n",
        *(f"- `{name}`: {' '.join(source.split())}" for name, source in validation.sources.items()),
        f"\nMade by simdp {validation.version}.",
    ]
    return "\n".join(parts) + "\n"


def _summaries(validation: Validation) -> Iterator[str]:
    if validation.points:
        yield "## Step times\n"
        yield _table(words.SUMMARY_COLUMNS, words.summary_rows(validation))
    if validation.rows:
        yield "## Collectives\n"
        yield _table(words.TABLE_COLUMNS, words.table_rows(validation))
    if validation.memory:
        yield "## Peak memory\n"
        yield _table(words.MEMORY_COLUMNS, words.memory_rows(validation))
    lines = [*words.memory_summary(validation), *words.refused_steps(validation)]
    yield "".join(f"- {line}\n" for line in lines)
    yield words.EXPLAINED + "\n"


def _folds(left_out: LeftOut) -> Iterator[str]:
    for title, rows in words.titles(left_out):
        yield f"## {title}\n"
        yield _table(words.FOLD_COLUMNS, rows)
    yield words.LEFT_OUT_EXPLAINED + "\n"


def _misses(validation: Validation, target: float) -> Iterator[str]:
    """List predicted steps, and means of tables, beyond the target, with known reasons."""
    yield f"## Missed by more than {percent(target)}\n"
    steps = [
        [point.cluster, *words.step_cells(point), point.note or "no effect is known"]
        for point in validation.points
        if point.is_predicted and abs(point.error) > target
    ]
    if steps:
        columns = (Column("cluster", False), *words.STEP_COLUMNS, Column("what is missing", False))
        yield _table(columns, steps)
    tables = []
    for rows in validation.tables():
        errors = summary(rows[0].cluster, rows, 0.0)
        if errors.mean_error is not None and errors.mean_error > target:
            cells = words.table_cells(errors, words.table_name(rows), str(rows[0].world_size))
            tables.append([*cells, rows[0].note or "no effect is known"])
    if tables:
        yield _table((*words.TABLE_COLUMNS, Column("what is missing", False)), tables)
    if not steps and not tables:
        yield "No predicted step, and no table in its mean.\n"


def _lost(validation: Validation) -> Iterator[str]:
    """List intervals that are too narrow, and tables that the ring formula predicts better."""
    narrow = words.narrow_intervals(validation)
    if narrow:
        yield "## Intervals that hold too little\n"
        yield "".join(f"- {line}\n" for line in narrow)
    wins = words.ring_wins(validation)
    if wins:
        yield f"## {words.RING_WINS}\n"
        yield "".join(f"- {line}\n" for line in wins)


def _points(validation: Validation) -> Iterator[str]:
    for name in validation.clusters:
        points = validation.of(name).points
        if points:
            yield f"## Steps on {name}\n"
            yield _table(words.STEP_COLUMNS, map(words.step_cells, points))


def _tables(validation: Validation) -> Iterator[str]:
    for rows in validation.tables():
        first = rows[0]
        yield f"## {words.table_name(rows)} on {first.cluster}, {first.world_size} ranks\n"
        yield _table(words.SIZE_COLUMNS, map(words.size_cells, rows))


def _excluded(validation: Validation) -> Iterator[str]:
    if validation.excluded:
        yield "## Left out\n"
        columns = [Column(head, False) for head in ("cluster", "scenario", "set", "reason")]
        yield _table(
            columns,
            [
                [step.cluster, step.scenario, words.setting(step.set) or "-", step.reason]
                for step in validation.excluded
            ],
        )


def _not_compared(validation: Validation) -> Iterator[str]:
    if validation.not_compared:
        yield "## Not compared, since wrong\n"
        yield _table(words.NOT_COMPARED_COLUMNS, words.not_compared_rows(validation))


class Picture(NamedTuple):
    """A picture: its file, kind of plot, data, and caption."""

    file: str
    kind: str
    part: Validation
    shows: str


def pictures(validation: Validation) -> list[Picture]:
    """List the pictures that a validation has the data for."""
    kind = "simulated_against_measured"
    drawn = []
    if validation.points:
        steps = replace(validation, rows=())
        shows = "Simulated against measured step times"
        drawn.append(Picture(f"{kind}.png", kind, steps, shows))
    if validation.rows:
        tables = replace(validation, points=())
        shows = "Simulated against measured times of collectives"
        drawn.append(Picture("collectives_against_measured.png", kind, tables, shows))
    if "reliability" in fitting(validation):
        shows = "Nominal and observed coverage of the intervals"
        drawn.append(Picture("reliability.png", "reliability", validation, shows))
    for cluster in validation.clusters:
        part = replace(validation.of(cluster), rows=())
        if "throughput_curves" in fitting(part):
            file = f"throughput_{re.sub(r'[^A-Za-z0-9_.+-]', '_', cluster)}.png"
            shows = f"Throughput on {cluster}, measured and simulated"
            drawn.append(Picture(file, "throughput_curves", part, shows))
    return drawn


def tables(study: CalibrationStudy | StepCalibration) -> RenderableType:
    """Write the points, the constants with their intervals, and the next measurement."""
    points = _collectives(study) if isinstance(study, CalibrationStudy) else _steps(study)
    constants = _calibration_table(
        f"constants of {study.name}",
        ("constant", "value", "90 % interval", ""),
        (
            (
                constant.key,
                constant.value,
                f"{constant.low} ... {constant.high}",
                "" if constant.is_determined else "not determined by the data",
            )
            for constant in study.constants
        ),
    )
    text = f"root mean square error of the fit: {percent(study.residual)}\n{_next(study)}"
    return Group(points, constants, Text(text))


def baselines(solved: Sequence[Baseline]) -> RenderableType:
    """Write the one-device step times derived from steps of several ranks."""
    are_weighted = any(baseline.weighted for baseline in solved)
    heads = ["scenario", "microbatch", "ranks", "nodes", "given", "solved", "90 % interval"]
    rows = []
    for baseline in solved:
        row = [
            baseline.scenario,
            *map(str, (baseline.microbatch, baseline.world_size, baseline.num_nodes)),
        ]
        row += [
            words.time(baseline.given),
            words.time(baseline.found),
            words.interval(baseline.low, baseline.high),
        ]
        row.append(percent(baseline.change, "+.1f"))
        if are_weighted:
            row += [words.time(t) if t else "-" for t in (baseline.by_roofline, baseline.weighted)]
        rows.append(row)
    heads += ["change", "roofline", "weighted"] if are_weighted else ["change"]
    text = "solved: with it as workload.compute's step_time the measured step is met"
    if are_weighted:
        text += "; roofline: by the device's figures; weighted: their mean, by how sure each is"
    return Group(_calibration_table("a step on one device", heads, rows), Text(f"{text}."))


ROWS_COLUMNS = (*words.columns(1, "file", "GPUs", "points"), Column("compute", False))


def written_scenarios(made: TableScenarios) -> RenderableType:
    """Write the scenarios made from a table of measurements, and how they get their compute."""
    rows = [
        [
            scenario.file,
            ", ".join(map(str, scenario.gpus)),
            str(scenario.num_points),
            scenario.compute,
        ]
        for scenario in made.scenarios
    ]
    lines = [f"assumed: {line}" for line in made.assumed]
    lines.append(
        "compute: measured, where a scenario has rows of one GPU; otherwise by the device's data "
        "sheet; --compute chooses"
    )
    groups = [RowGroup("", rows)]
    table, _ = fitted_table(f"scenarios of {made.table}", ROWS_COLUMNS, groups, ["points"])
    return Group(table, filled(lines))


def _collectives(study: CalibrationStudy) -> RenderableType:
    return _calibration_table(
        "fit",
        ("file", "collective", "ranks", "size", "measured", "fitted", "error", "by"),
        (
            (
                point.source,
                point.collective,
                str(point.world_size),
                format_quantity(point.nbytes, "data size"),
                words.time(point.measured),
                words.time(point.fitted),
                percent(point.error, "+.1f"),
                f"{point.algorithm}/{point.protocol}",
            )
            for point in study.points
        ),
    )


def _steps(study: StepCalibration) -> RenderableType:
    return _calibration_table(
        "fit",
        ("point", "measured", "fitted", "error"),
        (
            (
                point.title,
                words.time(point.measured),
                words.time(point.fitted),
                percent(point.error, "+.1f"),
            )
            for point in study.points
        ),
    )


def _next(study: CalibrationStudy | StepCalibration) -> str:
    """Write the measurement that reduces the uncertainty most."""
    if study.wanted is not None:
        return _wanted(study.wanted)
    if isinstance(study, StepCalibration):
        step = study.next_point
        if step is None:
            return "add points with role: predicted to be told which of them to measure next"
        return (
            f"what is predicted is known within {percent(step.before)}; measuring {step.title} "
            f"would make it {percent(step.after)}"
        )
    following = study.next_point
    size = format_quantity(following.nbytes, "data size")
    return (
        f"{following.target} is known within {percent(following.before)}; measuring "
        f"{following.collective} of {size} between {following.world_size} ranks on "
        f"{following.num_nodes} nodes would make it {percent(following.after)}"
    )


def _wanted(step: WantedStep) -> str:
    """Write the uncertainty of the wanted step, and measurements that reduce it."""
    known = f"{step.target}: known within {percent(step.before)}"
    if not step.proposals:
        return f"{known}; neither a table nor a step on fewer ranks would narrow it"
    first, *others = step.proposals
    best = f"{first.title} would make it {percent(first.after)}"
    return "; ".join(
        [known, best, *(f"{proposal.title} {percent(proposal.after)}" for proposal in others)]
    )


def _calibration_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    columns = [(head, bool(n and head)) for n, head in enumerate(heads)]
    return wide_table(table_of(title, columns, rows))
