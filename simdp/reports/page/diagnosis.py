"""Pages of a diagnosis and of a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import join

from simdp.reports import diagnosis_table, difference_table, theme
from simdp.reports.charts.chart import Axis, Chart, Series
from simdp.reports.charts.sweep import STEP_PARTS as FILLS
from simdp.reports.figures import Row, TableCell, figure, nbytes, number, percent, seconds
from simdp.reports.sections import Page, Section, Source, Summary, Table, Tile, Verdict, table_of
from simdp.results.comparison import Difference, PointDifference
from simdp.results.diagnosis import Diagnosis

# names, fields and fills of a step's parts; the rest is `other`
PARTS = (
    ("compute", "compute_s", "compute"),
    ("transfers in the open", "transfer_s", "comm"),
    ("waiting for ranks", "wait_s", "wait"),
    ("data late", "input_s", "input"),
    ("host late", "launch_s", "host"),
)

# the same for a job without a trace
REPORTED_PARTS = (
    ("compute", "compute_s", "compute"),
    ("communication in the open", "exposed_comm_s", "comm"),
)

TINY = 1e-10  # rounding error of times, as traces count nanoseconds [s]
MANY_RANKS = 64  # ranks above which lateness is a line, not bars


def page(found: Diagnosis, command: Sequence[str] = (), title: str = "") -> Page:
    """Make the page of a diagnosis; ``title`` is the file or folder."""
    sections = [
        *_verdict(found),
        _summary(found),
        *[Verdict("Warnings", found.remarks, "warning") for _ in found.remarks[:1]],
        *_remedies(found),
        *_parts(found),
        *_lateness(found),
        *_tables(found),
        *_reproduce(command),
    ]
    said = "why its step takes so long" if found.step_time_s else "what its records say"
    foot = f"{title or 'traces'} · read as {found.source.replace('_', ' ')}"
    return Page(
        f"{title or 'The job'}: {said}", diagnosis_table.headline(found, title), sections, foot
    )


def _verdict(found: Diagnosis) -> Iterator[Section]:
    if found.verdict:
        first, *others = found.verdict
        lines = [diagnosis_table.finding(first), *diagnosis_table.comparison(first)]
        lines += [
            f"helps: {diagnosis_table.helps(found, one, with_base=not number)}"
            for number, one in enumerate(diagnosis_table.different(first.remedies)[:2])
        ]
        yield Verdict("Verdict", lines, "warning")
        if others:
            told = [
                line
                for one in others
                for line in (diagnosis_table.finding(one), *diagnosis_table.comparison(one))
            ]
            yield Verdict("Other causes", told)
    elif not found.mismatches:
        what = "None of the known causes." if found.source == "log" else ""
        yield Verdict("Verdict", [what or "No rank disagrees with another."], "good")


def _summary(found: Diagnosis) -> Section:
    step = found.step_time_s
    tiles = [Tile("ranks", str(found.num_ranks), f"of {found.world_size or found.num_ranks}")]
    rows = [Row(one.name, one.name, ", ".join(one.kinds)) for one in found.sources]
    if step is not None:
        spread = found.spread_s
        said = f"{seconds(spread['min'])} to {seconds(spread['max'])}" if spread else ""
        tiles.insert(0, Tile("step time", seconds(step), said))
        for name, value in (
            ("compute", found.compute_s),
            ("communication in the open", found.exposed_comm_s),
            ("idle", found.idle_s),
        ):
            if value is not None:
                tiles.append(Tile(name, percent(value / step), seconds(value)))
    if found.num_steps:
        said = f"{found.num_steps}, {found.steps_are}".removesuffix(", ")
        rows.append(Row("steps", "steps", said))
    if found.hidden_comm_s is not None:
        rows.append(Row("hidden", "communication hidden by compute", found.hidden_comm_s, "s"))
    if found.expected is not None:
        rows.append(Row("expected", "should take", diagnosis_table.expected(found.expected)))
    if found.machine_from is not None:
        named = None if found.source == "reported" else found.machine  # which it names already
        rows.append(Row("machine", "machine", ", ".join(filter(None, [named, found.machine_from]))))
    if found.buckets:
        each = ", ".join(f"{one.num_elements:,} {one.dtype}" for one in found.buckets[:12])
        more = f" and {len(found.buckets) - 12} more" if len(found.buckets) > 12 else ""
        rule = f"; {found.bucket_rule}" if found.bucket_rule else ""
        rows.append(Row("buckets", "buckets", f"{each}{more}{rule}"))
    return Summary("Summary", tiles, rows)


def _remedies(found: Diagnosis) -> Iterator[Section]:
    """Make the table of simulated remedies, the best first."""
    each = [(one, remedy) for one in found.verdict for remedy in one.remedies]
    if not each:
        return
    each.sort(key=lambda pair: pair[1].step_time_s)
    now = found.replayed_s
    rows = [
        [
            remedy.change,
            one.cause,
            TableCell(seconds(remedy.step_time_s), remedy.step_time_s),
            TableCell(percent(1 - remedy.step_time_s / now), 1 - remedy.step_time_s / now)
            if now
            else "-",
        ]
        for one, remedy in each
    ]
    source = "as it was reported" if found.source == "reported" else "in the replay of these traces"
    note = f"Beside a step of {seconds(now)} {source}." if now else ""
    yield Table("What would help", ["change", "against", "step", "less"], rows, note=note)


def _parts(found: Diagnosis) -> Iterator[Section]:
    """Draw the parts of a step, means over ranks."""
    step = found.step_time_s
    if step is None:
        return
    unit, per_second = theme.time_unit(step)
    parts = PARTS if found.transfer_s is not None else REPORTED_PARTS
    known = [(name, getattr(found, field) or 0.0, fill) for name, field, fill in parts]
    rest = max(step - sum(value for _, value, _ in known), 0.0)
    known.append(("other", rest, "copy"))
    series = [
        Series(
            name,
            ["step"],
            [value * per_second],
            "bar",
            color=_bar_color(fill),
            hatch=theme.FILLS[fill].hatch,
            stack="step",
        )
        for name, value, fill in known
    ]
    yield Chart(
        "Where a step's time goes",
        Axis("", "category"),
        Axis(f"Time [{unit}], mean over ranks", unit=unit),
        series,
        said=", ".join(f"{name} {seconds(value)}" for name, value, _ in known if value),
        sideways=True,
    )


def _bar_color(name: str) -> str:
    fill = theme.FILLS[name]
    return fill.hatch_color if fill.color.startswith(("#FFF", "#F2")) else fill.color


def _lateness(found: Diagnosis) -> Iterator[Section]:
    """Draw each rank's lateness and its waiting."""
    rows = [row for row in found.ranks if row.rank is not None]
    if len(rows) < 2 or not any(row.late_s or row.wait_s for row in rows):
        return
    unit, per_second = theme.time_unit(max(max(row.late_s, row.wait_s) for row in rows))
    many = len(rows) > MANY_RANKS
    at: list[float] | list[str]
    at = [float(row.rank or 0) for row in rows] if many else [str(row.rank) for row in rows]
    series = [
        Series(
            name,
            at,
            [value * per_second for value in values],
            "line" if many else "bar",
            color=color,
        )
        for name, values, color in (
            ("comes later than the first", [row.late_s for row in rows], theme.STRAGGLER),
            ("waits for others", [row.wait_s for row in rows], theme.WAIT),
        )
    ]
    yield Chart(
        "Who is late, and who waits",
        Axis("Rank", "value" if many else "category"),
        Axis(f"Time of a step [{unit}]", unit=unit),
        series,
        said="Means of a step: how late each rank comes to what ranks meet in, and its waiting.",
    )


def _tables(found: Diagnosis) -> Iterator[Section]:
    if found.ranks:
        yield _ranks(found)
    yield from _collectives(found)
    if found.late:
        yield table_of(
            "Steps that lost most to late ranks",
            [("step", True), ("rank that came last", True), ("lost", True)],
            [[_count(row.step), _count(row.rank), _time(row.lost_s)] for row in found.late],
        )
    if found.mismatches:
        heads = ("collective", "number", "state", "ranks", "how")
        yield table_of(
            "What ranks disagree on",
            [(head, head == "number") for head in heads],
            [
                [
                    row.name,
                    _count(row.sequence),
                    row.state,
                    ", ".join(map(str, row.culprit_ranks or row.missing_ranks)),
                    row.detail,
                ]
                for row in found.mismatches
            ],
        )


# heads and fields of the table of ranks
RANK_COLUMNS = {
    "step": "step_time_s",
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "hidden": "hidden_comm_s",
    "idle": "idle_s",
    "waits": "wait_s",
    "late": "late_s",
    "data late": "input_s",
    "host late": "launch_s",
}


def _ranks(found: Diagnosis) -> Section:
    heads = [("rank", True), *((head, True) for head in RANK_COLUMNS)]
    rows = [
        [_count(row.rank), *(_time(getattr(row, field)) for field in RANK_COLUMNS.values())]
        for row in found.ranks
    ]
    return table_of("Ranks", heads, rows, "Means of a step.")


def _count(value: int | None) -> TableCell:
    return number(value, "d")


def _time(value: float | None) -> TableCell:
    """Write a time; rounding errors are 0."""
    return seconds(0.0 if value is not None and abs(value) < TINY else value)


def _collectives(found: Diagnosis) -> Iterator[Section]:
    if not found.collectives:
        return
    heads = [("collective", False), ("size", True), ("how", False), ("count", True)]
    heads += [(name, True) for name in ("transfer", "wait", "bus bandwidth", "should take")]
    rows = [
        [
            row.name,
            nbytes(row.nbytes),
            f"{row.algorithm} {row.protocol}".strip() or "-",
            _count(row.count),
            seconds(row.transfer_s),
            seconds(row.wait_s),
            figure(None if row.busbw is None else row.busbw / 1e9, ".3g", " GB/s", 1e9),
            seconds(row.expected_s),
        ]
        for row in found.collectives
    ]
    machine = ", ".join(filter(None, [found.machine, found.machine_from]))
    yield table_of("Collectives", heads, rows, f"should take: {machine}" if machine else "")


def _reproduce(command: Sequence[str]) -> Iterator[Section]:
    if command:
        given = join(["python", "-m", "simdp", *command])
        yield Source("How to reproduce it", source=given, name="command line")


# names and fills of the parts of a step
LOOKS = {
    **FILLS,
    "compute_and_update_s": (difference_table.NAMES["compute_and_update_s"], FILLS["compute_s"][1]),
}


def difference_page(found: Difference, command: Sequence[str] = ()) -> Page:
    """Make the page of a difference of at least one point.

    ``command`` is not shown: both sides are files of the reader's.
    """
    notes = [*difference_table.remarks(found)]
    lines = [line.strip() for line in difference_table.words(found)]
    longest = max(point.seconds for point in found.points)
    sections: list[Section] = [
        Verdict("What explains it", lines[1:], "note" if longest > 0 else "good"),
        *_difference_summary(found),
        bars(found),
        *(
            replace(section, title=section.title.capitalize())
            for section in difference_table.sections(found)
        ),
        *[Verdict("Notes", notes) for _ in notes[:1]],
    ]
    return Page(
        f"{found.a.name} and {found.b.name}: what changed",
        difference_table.headline(found),
        sections,
        f"{found.a.name}: {_made(found.a.version)} · {found.b.name}: {_made(found.b.version)} · "
        f"compared by simdp {found.version}",
    )


def _made(version: str | None) -> str:
    return "a real run" if version is None else f"simdp {version}"


def _difference_summary(found: Difference) -> Iterator[Section]:
    if len(found.points) > 1:
        return
    (point,) = found.points
    first = point.parts[0]
    is_most = 2 * first.seconds * point.seconds > point.seconds**2
    yield Summary(
        "Summary",
        [
            Tile("step of A", seconds(point.a_s), found.a.name),
            Tile("step of B", seconds(point.b_s), found.b.name),
            Tile(
                "B - A",
                difference_table.signed(point.seconds),
                f"{point.b_s / point.a_s:.3g} x as long",
            ),
            Tile(
                "most of it" if is_most else "largest part",
                difference_table.NAMES[first.part],
                difference_table.signed(first.seconds),
            ),
        ],
    )


def bars(found: Difference) -> Section:
    """Draw the steps of both sides in parts, two bars per point."""
    unit, per_second = theme.time_unit(max(max(p.a_s, p.b_s) for p in found.points))
    names = [name for point in found.points for name in _names(point, found)]
    present = [part for part in LOOKS if any(part == p.part for p in found.points[0].parts)]
    series = []
    for key in present:
        values = [
            value * per_second
            for point in found.points
            for part in point.parts
            if part.part == key
            for value in (part.a, part.b)
        ]
        name, fill = LOOKS[key]
        series.append(
            Series(name, names, values, "bar", color=fill.color, hatch=fill.hatch, stack="step")
        )
    return Chart(
        "Where a step's time goes",
        Axis("", "category"),
        Axis(f"Time [{unit}], mean over ranks", unit=unit),
        series,
        said="Two bars for each point, A above B; their parts add up to the steps.",
        sideways=True,
    )


def _names(point: PointDifference, found: Difference) -> list[str]:
    lead = f"{difference_table.label(point.set)}: " if len(found.points) > 1 else ""
    return [f"{lead}A", f"{lead}B"]
