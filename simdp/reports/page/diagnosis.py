"""Pages of a diagnosis and of a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simdp.reports import diagnosis_table, difference_table, theme
from simdp.reports.charts.chart import Axis, Chart, Series
from simdp.reports.charts.sweep import STEP_PARTS as FILLS
from simdp.reports.charts.sweep import stacked
from simdp.reports.figures import Row, TableCell, figure, nbytes, number, percent, seconds
from simdp.reports.page.run import reproduce
from simdp.reports.sections import Page, Section, Summary, Table, Tile, Verdict, table_of
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


def page(diagnosis: Diagnosis, command: Sequence[str] = (), title: str = "") -> Page:
    """Make the page of a diagnosis; ``title`` is the file or folder."""
    sections = [
        *_verdict(diagnosis),
        _summary(diagnosis),
        *[Verdict("Warnings", diagnosis.remarks, "warning") for _ in diagnosis.remarks[:1]],
        *_remedies(diagnosis),
        *_parts(diagnosis),
        *_lateness(diagnosis),
        *_tables(diagnosis),
        *reproduce(command),
    ]
    question = "why its step takes so long" if diagnosis.step_time_s else "what its records say"
    foot = f"{title or 'traces'} · read as {diagnosis.source.replace('_', ' ')}"
    return Page(
        f"{title or 'The job'}: {question}",
        diagnosis_table.headline(diagnosis, title),
        sections,
        foot,
    )


def _verdict(diagnosis: Diagnosis) -> Iterator[Section]:
    if diagnosis.verdict:
        first, *others = diagnosis.verdict
        lines = [diagnosis_table.finding(first), *diagnosis_table.comparison(first)]
        lines += [
            f"helps: {diagnosis_table.helps(diagnosis, cause, with_base=not number)}"
            for number, cause in enumerate(diagnosis_table.different(first.remedies)[:2])
        ]
        yield Verdict("Verdict", lines, "warning")
        if others:
            lines_of_others = [
                line
                for cause in others
                for line in (diagnosis_table.finding(cause), *diagnosis_table.comparison(cause))
            ]
            yield Verdict("Other causes", lines_of_others)
    elif not diagnosis.mismatches:
        what = "None of the known causes." if diagnosis.source == "log" else ""
        yield Verdict("Verdict", [what or "No rank disagrees with another."], "good")


def _summary(diagnosis: Diagnosis) -> Section:
    step = diagnosis.step_time_s
    tiles = [
        Tile("ranks", str(diagnosis.num_ranks), f"of {diagnosis.world_size or diagnosis.num_ranks}")
    ]
    rows = [Row(source.name, source.name, ", ".join(source.kinds)) for source in diagnosis.sources]
    if step is not None:
        spread = diagnosis.spread_s
        detail = f"{seconds(spread['min'])} to {seconds(spread['max'])}" if spread else ""
        tiles.insert(0, Tile("step time", seconds(step), detail))
        for name, value in (
            ("compute", diagnosis.compute_s),
            ("communication in the open", diagnosis.exposed_comm_s),
            ("idle", diagnosis.idle_s),
        ):
            if value is not None:
                tiles.append(Tile(name, percent(value / step), seconds(value)))
    if diagnosis.num_steps:
        detail = f"{diagnosis.num_steps}, {diagnosis.steps_are}".removesuffix(", ")
        rows.append(Row("steps", "steps", detail))
    if diagnosis.hidden_comm_s is not None:
        rows.append(Row("hidden", "communication hidden by compute", diagnosis.hidden_comm_s, "s"))
    if diagnosis.expected is not None:
        rows.append(Row("expected", "should take", diagnosis_table.expected(diagnosis.expected)))
    if diagnosis.machine_from is not None:
        named = (
            None if diagnosis.source == "reported" else diagnosis.machine
        )  # which it names already
        rows.append(
            Row("machine", "machine", ", ".join(filter(None, [named, diagnosis.machine_from])))
        )
    if diagnosis.buckets:
        sizes = ", ".join(
            f"{source.num_elements:,} {source.dtype}" for source in diagnosis.buckets[:12]
        )
        more = f" and {len(diagnosis.buckets) - 12} more" if len(diagnosis.buckets) > 12 else ""
        rule = f"; {diagnosis.bucket_rule}" if diagnosis.bucket_rule else ""
        rows.append(Row("buckets", "buckets", f"{sizes}{more}{rule}"))
    return Summary("Summary", tiles, rows)


def _remedies(diagnosis: Diagnosis) -> Iterator[Section]:
    """Make the table of simulated remedies, the best first."""
    remedies = [(cause, remedy) for cause in diagnosis.verdict for remedy in cause.remedies]
    if not remedies:
        return
    remedies.sort(key=lambda pair: pair[1].step_time_s)
    now = diagnosis.replayed_s
    rows = [
        [
            remedy.change,
            cause.cause,
            TableCell(seconds(remedy.step_time_s), remedy.step_time_s),
            TableCell(percent(1 - remedy.step_time_s / now), 1 - remedy.step_time_s / now)
            if now
            else "-",
        ]
        for cause, remedy in remedies
    ]
    source = (
        "as it was reported" if diagnosis.source == "reported" else "in the replay of these traces"
    )
    note = f"Beside a step of {seconds(now)} {source}." if now else ""
    yield Table("What would help", ["change", "against", "step", "less"], rows, note=note)


def _parts(diagnosis: Diagnosis) -> Iterator[Section]:
    """Draw the parts of a step, means over ranks."""
    step = diagnosis.step_time_s
    if step is None:
        return
    parts = PARTS if diagnosis.transfer_s is not None else REPORTED_PARTS
    times = [(name, getattr(diagnosis, field) or 0.0, fill) for name, field, fill in parts]
    times.append(("other", max(step - sum(time for _, time, _ in times), 0.0), "copy"))
    yield stacked(
        "Where a step's time goes",
        ["step"],
        [(name, [time], _bar_fill(fill)) for name, time, fill in times],
        caption=", ".join(f"{name} {seconds(time)}" for name, time, _ in times if time),
    )


def _bar_fill(name: str) -> theme.FillStyle:
    """Choose the fill of an activity's bar; pale ones take the colour of their hatch."""
    fill = theme.FILLS[name]
    is_pale = fill.color.startswith(("#FFF", "#F2"))
    return fill._replace(color=fill.hatch_color) if is_pale else fill


def _lateness(diagnosis: Diagnosis) -> Iterator[Section]:
    """Draw each rank's lateness and its waiting."""
    rows = [row for row in diagnosis.ranks if row.rank is not None]
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
        caption="Means of a step: how late each rank comes to what ranks meet in, and its waiting.",
    )


def _tables(diagnosis: Diagnosis) -> Iterator[Section]:
    if diagnosis.ranks:
        yield _ranks(diagnosis)
    yield from _collectives(diagnosis)
    if diagnosis.late:
        yield table_of(
            "Steps that lost most to late ranks",
            [("step", True), ("rank that came last", True), ("lost", True)],
            [[_count(row.step), _count(row.rank), _time(row.lost_s)] for row in diagnosis.late],
        )
    if diagnosis.mismatches:
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
                for row in diagnosis.mismatches
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


def _ranks(diagnosis: Diagnosis) -> Section:
    heads = [("rank", True), *((head, True) for head in RANK_COLUMNS)]
    rows = [
        [_count(row.rank), *(_time(getattr(row, field)) for field in RANK_COLUMNS.values())]
        for row in diagnosis.ranks
    ]
    return table_of("Ranks", heads, rows, "Means of a step.")


def _count(value: int | None) -> TableCell:
    return number(value, "d")


def _time(value: float | None) -> TableCell:
    """Write a time; rounding errors are 0."""
    return seconds(0.0 if value is not None and abs(value) < TINY else value)


def _collectives(diagnosis: Diagnosis) -> Iterator[Section]:
    if not diagnosis.collectives:
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
        for row in diagnosis.collectives
    ]
    machine = ", ".join(filter(None, [diagnosis.machine, diagnosis.machine_from]))
    yield table_of("Collectives", heads, rows, f"should take: {machine}" if machine else "")


# names and fills of the parts of a step
LOOKS = {
    **FILLS,
    "compute_and_update_s": (difference_table.NAMES["compute_and_update_s"], FILLS["compute_s"][1]),
}


def difference_page(difference: Difference, command: Sequence[str] = ()) -> Page:
    """Make the page of a difference of at least one point.

    ``command`` is not shown: both sides are files of the reader's.
    """
    notes = [*difference_table.remarks(difference)]
    lines = [line.strip() for line in difference_table.words(difference)]
    longest = max(point.seconds for point in difference.points)
    sections: list[Section] = [
        Verdict("What explains it", lines[1:], "note" if longest > 0 else "good"),
        *_difference_summary(difference),
        bars(difference),
        *(
            replace(section, title=section.title.capitalize())
            for section in difference_table.sections(difference)
        ),
        *[Verdict("Notes", notes) for _ in notes[:1]],
    ]
    return Page(
        f"{difference.a.name} and {difference.b.name}: what changed",
        difference_table.headline(difference),
        sections,
        " · ".join(
            [
                *(f"{side.name}: {_made(side.version)}" for side in (difference.a, difference.b)),
                f"compared by simdp {difference.version}",
            ]
        ),
    )


def _made(version: str | None) -> str:
    return "a real run" if version is None else f"simdp {version}"


def _difference_summary(difference: Difference) -> Iterator[Section]:
    if len(difference.points) > 1:
        return
    (point,) = difference.points
    first = point.parts[0]
    is_most = 2 * first.seconds * point.seconds > point.seconds**2
    yield Summary(
        "Summary",
        [
            Tile("step of A", seconds(point.a_s), difference.a.name),
            Tile("step of B", seconds(point.b_s), difference.b.name),
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


def bars(difference: Difference) -> Section:
    """Draw the steps of both sides in parts, two bars per point."""
    points = difference.points
    present = [part for part in LOOKS if any(part == p.part for p in points[0].parts)]
    times = {
        key: [
            time
            for point in points
            for part in point.parts
            if part.part == key
            for time in (part.a, part.b)
        ]
        for key in present
    }
    return stacked(
        "Where a step's time goes",
        [name for point in points for name in _names(point, difference)],
        [(name, times[key], fill) for key, (name, fill) in LOOKS.items() if key in times],
        caption="Two bars for each point, A above B; their parts add up to the steps.",
    )


def _names(point: PointDifference, difference: Difference) -> list[str]:
    lead = f"{difference_table.label(point.set)}: " if len(difference.points) > 1 else ""
    return [f"{lead}A", f"{lead}B"]
