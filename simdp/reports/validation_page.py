"""The page of a validation, as Markdown: summaries, pictures, what is missed, every point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from simdp.reports import left_out_words
from simdp.reports import validation_words as words
from simdp.reports.validation_words import Column
from simdp.results.left_out import LeftOut
from simdp.results.validation import Comparison, Validation, summary


def page(
    validation: Validation,
    pictures: Mapping[str, str],
    target: float,
    left_out: LeftOut | None = None,
) -> str:
    """Write the page.

    Parameters
    ----------
    validation : Validation
        Left as it is.
    pictures : mapping of str to str
        Files of pictures, beside the page, with what they show.
    target : float
        Error beyond which a predicted point is missed.
    left_out : LeftOut, optional
        Where the validation is that of what was left out.
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
        "## Sources\n",
        *(f"- `{name}`: {_line(source)}" for name, source in validation.sources.items()),
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
    yield words.EXPLAINED + "\n"


def _folds(left_out: LeftOut) -> Iterator[str]:
    for title, rows in left_out_words.titles(left_out):
        yield f"## {title}\n"
        yield _table(left_out_words.FOLD_COLUMNS, rows)
    yield left_out_words.EXPLAINED + "\n"


def _misses(validation: Validation, target: float) -> Iterator[str]:
    """Predicted steps beyond the target, and tables whose mean is, with the effect they lack."""
    yield f"## Missed by more than {words.share(target)}\n"
    steps = [
        [*_cells(point), point.note or "no effect is known"]
        for point in validation.points
        if point.is_predicted and abs(point.error) > target
    ]
    if steps:
        columns = (Column("cluster", False), *words.STEP_COLUMNS, Column("what is missing", False))
        yield _table(columns, steps)
    tables = []
    for rows in validation.tables():
        found = summary(rows[0].cluster, rows, 0.0)
        if found.mean_error is not None and found.mean_error > target:
            ranks = str(rows[0].world_size)
            cells = words.table_cells(found, words.table_name(rows), ranks)
            tables.append([*cells, rows[0].note or "no effect is known"])
    if tables:
        yield _table((*words.TABLE_COLUMNS, Column("what is missing", False)), tables)
    if not steps and not tables:
        yield "No predicted step, and no table in its mean.\n"


def _lost(validation: Validation) -> Iterator[str]:
    """Where intervals hold too little, and where a formula does better."""
    narrow = words.narrow_intervals(validation)
    if narrow:
        yield "## Intervals that hold too little\n"
        yield "".join(f"- {line}\n" for line in narrow)
    wins = words.ring_wins(validation)
    if wins:
        yield f"## {words.RING_WINS}\n"
        yield "".join(f"- {line}\n" for line in wins)


def _cells(point: Comparison) -> list[str]:
    return [point.cluster, *words.step_cells(point)]


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
                [one.cluster, one.scenario, words.setting(one.set) or "-", one.reason]
                for one in validation.excluded
            ],
        )


def _line(text: str) -> str:
    return " ".join(text.split())


def _table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        [column.head for column in columns],
        ["--:" if column.is_number else "---" for column in columns],
        *rows,
    ]
    cells = [[_line(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
