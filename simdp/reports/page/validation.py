"""Page of a validation: simulated times against measured ones, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simdp.reports import theme
from simdp.reports import validation as words
from simdp.reports.charts.validation import against
from simdp.reports.figures import number, percent, sentence
from simdp.reports.page.run import reproduce
from simdp.reports.sections import Page, Section, Summary, Tile, Verdict, table_of
from simdp.results.validation import LeftOut, TimeComparison, Validation


def page(
    validation: Validation,
    command: Sequence[str] = (),
    target: float = words.NO_TARGET,
    left_out: LeftOut | None = None,
) -> Page:
    """Make the page of a validation.

    ``target`` is the error above which a predicted point is missed, and ``left_out`` adds
    cross-validation.
    """
    sections = [
        *_verdict(validation, target),
        _summary(validation),
        *_summaries(validation, left_out),
        *against(validation),
        *_tables(validation),
        *_sources(validation),
        *reproduce(command, f"# simdp {validation.version}"),
    ]
    return Page(
        "Measured and simulated times", _about(validation), sections, theme.footer(validation)
    )


def _about(validation: Validation) -> str:
    names = validation.clusters
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _verdict(validation: Validation, target: float) -> Iterator[Section]:
    lines, missed = list[str](), validation.beyond(target)
    overall = validation.overall()
    if overall is not None and overall.mean_error is not None:
        lines.append(
            f"Steps: {percent(overall.mean_error)} off in the mean of "
            f"{overall.num_predicted} predicted points, {percent(overall.worst_error)} at "
            f"worst; {percent(overall.inside)} lie in their 90 % interval."
        )
    for summary in validation.collective_summaries():
        if summary.mean_error is not None:
            lines.append(
                f"Collectives on {summary.name}: {percent(summary.mean_error)} off in the mean."
            )
    if not lines and (validation.points or validation.rows):
        lines.append("Nothing here is predicted: constants were fitted to every point.")
    lines += [f"{line[:1].upper()}{line[1:]}." for line in words.memory_summary(validation)]
    narrow = words.narrow_intervals(validation)
    yield Verdict("Verdict", lines, "note" if missed or narrow else "good")
    careful = [
        f"{name}: {what} are {percent(error)} off in the mean, more than {percent(target)}."
        for name, what, error in missed
    ]
    careful += [sentence(line, ".") for line in narrow]
    wins = [f"{words.RING_WINS}: {line}." for line in words.ring_wins(validation)]
    if careful or wins:
        yield Verdict("Warnings", [*careful, *wins], "warning")


def _summary(validation: Validation) -> Section:
    every: list[TimeComparison] = [*validation.points, *validation.rows]
    predicted = [comparison for comparison in every if comparison.is_predicted]
    inside = (
        sum(comparison.is_inside for comparison in predicted) / len(predicted)
        if predicted
        else None
    )
    worst = max(predicted, key=lambda comparison: abs(comparison.error), default=None)
    tiles = [
        Tile("measured times", f"{len(every):,}", f"{len(validation.points):,} of them steps"),
        Tile("predicted", f"{len(predicted):,}", "nothing was fitted to them"),
        Tile("in their interval", percent(inside), "90 % would be right"),
    ]
    if worst is not None:
        setting = f"{worst.scenario}, {words.setting(worst.set)}".removesuffix(", ")
        tiles.append(Tile("worst", percent(worst.error, "+.1f"), setting))
    peaks = [comparison for comparison in validation.memory if comparison.measured is not None]
    if not every:
        tiles = []
    if peaks:
        inside = sum(comparison.is_inside for comparison in peaks)
        tiles.append(Tile("peaks of memory", f"{len(peaks):,}", f"{inside} in their interval"))
        tiles.append(Tile("their error", percent(validation.memory_error()), "in the mean"))
    return Summary("Summary", tiles)


def _summaries(validation: Validation, left_out: LeftOut | None) -> Iterator[Section]:
    if left_out is not None:
        for title, rows in words.titles(left_out):
            yield table_of(title, words.FOLD_COLUMNS, rows, words.LEFT_OUT_EXPLAINED)
    if validation.points:
        rows = words.summary_rows(validation)
        yield table_of("Step times", words.SUMMARY_COLUMNS, rows, words.EXPLAINED)
    if validation.rows:
        yield table_of(
            "Collectives", words.TABLE_COLUMNS, words.table_rows(validation), words.EXPLAINED
        )


def _tables(validation: Validation) -> Iterator[Section]:
    """Make the tables of every point, and of those that are left out; empty ones are dropped."""
    cluster = words.Column("cluster", False)
    sizes = (cluster, words.Column("collective", False), words.Column("ranks"))
    tables = (
        (
            "Every step",
            (cluster, *words.STEP_COLUMNS),
            [[point.cluster, *words.step_cells(point)] for point in validation.points],
        ),
        (
            "Every collective",
            (*sizes, *words.SIZE_COLUMNS),
            [
                [
                    of.cluster,
                    words.table_name([of]),
                    number(of.world_size, "d"),
                    *words.size_cells(of),
                ]
                for of in validation.rows
            ],
        ),
        ("Peak memory", words.MEMORY_COLUMNS, words.memory_rows(validation)),
        (
            "Left out",
            [(name, False) for name in ("cluster", "scenario", "set", "why")],
            [
                [point.cluster, point.scenario, words.setting(point.set) or "-", point.reason]
                for point in validation.excluded
            ],
        ),
        (
            "Not compared, since wrong",
            words.NOT_COMPARED_COLUMNS,
            words.not_compared_rows(validation),
        ),
    )
    refused = words.refused_steps(validation)
    for title, columns, rows in tables:
        if rows:
            yield table_of(title, columns, rows)
        if title == "Peak memory" and refused:
            yield Verdict("Steps that would not fit, although they ran", refused, "warning")


def _sources(validation: Validation) -> Iterator[Section]:
    if validation.sources:
        lines = [
            f"{name}: {' '.join(source.split())}" for name, source in validation.sources.items()
        ]
        yield Verdict("Sources", lines, folded=True)
