"""Page of a validation: simulated times against measured ones, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import join

from simdp.reports import theme
from simdp.reports import validation as words
from simdp.reports.charts.validation import against
from simdp.reports.figures import number, percent, sentence
from simdp.reports.sections import Page, Section, Source, Summary, Tile, Verdict, table_of
from simdp.results.validation import LeftOut, TimeComparison, Validation


def page(
    found: Validation,
    command: Sequence[str] = (),
    target: float = words.NO_TARGET,
    left_out: LeftOut | None = None,
) -> Page:
    """Make the page of a validation.

    ``target`` is the error above which a predicted point is missed, and ``left_out`` adds
    cross-validation.
    """
    sections = [
        *_verdict(found, target),
        _summary(found),
        *_summaries(found, left_out),
        *against(found),
        *_points(found),
        *_memory(found),
        *_excluded(found),
        *_not_compared(found),
        *_sources(found),
        *_reproduce(found, command),
    ]
    return Page("Measured and simulated times", _about(found), sections, theme.footer(found))


def _about(found: Validation) -> str:
    names = found.clusters
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _verdict(found: Validation, target: float) -> Iterator[Section]:
    lines, missed = list[str](), found.beyond(target)
    overall = found.overall()
    if overall is not None and overall.mean_error is not None:
        lines.append(
            f"Steps: {percent(overall.mean_error)} off in the mean of "
            f"{overall.num_predicted} predicted points, {percent(overall.worst_error)} at "
            f"worst; {percent(overall.inside)} lie in their 90 % interval."
        )
    for one in found.collective_summaries():
        if one.mean_error is not None:
            lines.append(f"Collectives on {one.name}: {percent(one.mean_error)} off in the mean.")
    if not lines and (found.points or found.rows):
        lines.append("Nothing here is predicted: constants were fitted to every point.")
    lines += [f"{line[:1].upper()}{line[1:]}." for line in words.memory_summary(found)]
    narrow = words.narrow_intervals(found)
    yield Verdict("Verdict", lines, "note" if missed or narrow else "good")
    careful = [
        f"{name}: {what} are {percent(error)} off in the mean, more than {percent(target)}."
        for name, what, error in missed
    ]
    careful += [sentence(line, ".") for line in narrow]
    wins = [f"{words.RING_WINS}: {line}." for line in words.ring_wins(found)]
    if careful or wins:
        yield Verdict("Warnings", [*careful, *wins], "warning")


def _summary(found: Validation) -> Section:
    every: list[TimeComparison] = [*found.points, *found.rows]
    predicted = [one for one in every if one.is_predicted]
    inside = sum(one.is_inside for one in predicted) / len(predicted) if predicted else None
    worst = max(predicted, key=lambda one: abs(one.error), default=None)
    tiles = [
        Tile("measured times", f"{len(every):,}", f"{len(found.points):,} of them steps"),
        Tile("predicted", f"{len(predicted):,}", "nothing was fitted to them"),
        Tile("in their interval", percent(inside), "90 % would be right"),
    ]
    if worst is not None:
        said = f"{worst.scenario}, {words.setting(worst.set)}".removesuffix(", ")
        tiles.append(Tile("worst", percent(worst.error, "+.1f"), said))
    peaks = [one for one in found.memory if one.measured is not None]
    if not every:
        tiles = []
    if peaks:
        inside = sum(one.is_inside for one in peaks)
        tiles.append(Tile("peaks of memory", f"{len(peaks):,}", f"{inside} in their interval"))
        tiles.append(Tile("their error", percent(found.memory_error()), "in the mean"))
    return Summary("Summary", tiles)


def _summaries(found: Validation, left_out: LeftOut | None) -> Iterator[Section]:
    if left_out is not None:
        for title, rows in words.titles(left_out):
            yield table_of(title, words.FOLD_COLUMNS, rows, words.LEFT_OUT_EXPLAINED)
    if found.points:
        rows = words.summary_rows(found)
        yield table_of("Step times", words.SUMMARY_COLUMNS, rows, words.EXPLAINED)
    if found.rows:
        yield table_of("Collectives", words.TABLE_COLUMNS, words.table_rows(found), words.EXPLAINED)


def _points(found: Validation) -> Iterator[Section]:
    columns = (words.Column("cluster", False), *words.STEP_COLUMNS)
    rows = [[point.cluster, *words.step_cells(point)] for point in found.points]
    if rows:
        yield table_of("Every step", columns, rows)
    sizes = [
        [row.cluster, words.table_name([row]), number(row.world_size, "d"), *words.size_cells(row)]
        for row in found.rows
    ]
    if sizes:
        heads = (words.Column("cluster", False), words.Column("collective", False))
        yield table_of(
            "Every collective", (*heads, words.Column("ranks"), *words.SIZE_COLUMNS), sizes
        )


def _memory(found: Validation) -> Iterator[Section]:
    rows = words.memory_rows(found)
    if rows:
        yield table_of("Peak memory", words.MEMORY_COLUMNS, rows)
    refused = words.refused_steps(found)
    if refused:
        yield Verdict("Steps that would not fit, although they ran", refused, "warning")


def _excluded(found: Validation) -> Iterator[Section]:
    rows = [
        [one.cluster, one.scenario, words.setting(one.set) or "-", one.reason]
        for one in found.excluded
    ]
    if rows:
        heads = [(name, False) for name in ("cluster", "scenario", "set", "why")]
        yield table_of("Left out", heads, rows)


def _not_compared(found: Validation) -> Iterator[Section]:
    rows = words.not_compared_rows(found)
    if rows:
        yield table_of("Not compared, since wrong", words.NOT_COMPARED_COLUMNS, rows)


def _sources(found: Validation) -> Iterator[Section]:
    if found.sources:
        lines = [f"{name}: {' '.join(said.split())}" for name, said in found.sources.items()]
        yield Verdict("Sources", lines, folded=True)


def _reproduce(found: Validation, command: Sequence[str]) -> Iterator[Section]:
    given = join(["python", "-m", "simdp", *command]) if command else ""
    version = f"# simdp {found.version}"
    yield Source(
        "How to reproduce it", source="\n".join(filter(None, [given, version])), name="command line"
    )
