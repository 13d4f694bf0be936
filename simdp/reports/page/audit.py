"""Page of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from simdp.reports import audit_table
from simdp.reports.figures import Row, TableCell, number, seconds
from simdp.reports.page.run import reproduce
from simdp.reports.sections import (
    Ledger,
    Page,
    Section,
    Summary,
    Table,
    Tile,
    Verdict,
    table_of,
)
from simdp.results.audit import CAUSES, AuditReport, Finding, SampleRow

MOST_SAMPLES = 100_000  # of the ledger's picture; of more, the first steps are shown
MOST_RANKS = 128  # rows of a panel
MOST_PANELS = 16

STATUSES = {"ok": "ok", "differ": "differs", "allowed": "allowed", "not checked": "not checked"}


def page(report: AuditReport, command: Sequence[str] = (), title: str = "") -> Page:
    """Make the page of an audit; ``title`` is the script or scenario, if not its name."""
    name = title or report.name
    sections = [
        _verdict(report),
        _summary(report),
        *_checks(report),
        *_findings(report),
        *_tensors(report),
        *_experiments(report),
        *_ledger(report),
        *[Verdict("Notes", report.notes) for _ in report.notes[:1]],
        *reproduce(command),
    ]
    about = audit_table.title(report)
    foot = f"{name} · by simdp audit"
    return Page(f"{name}: is its training data-parallel?", about, sections, foot)


def place(finding: Finding) -> str:
    """Write file and line of a finding; empty without a file."""
    if finding.file is None:
        return ""
    return Path(finding.file).name + (f":{finding.line}" if finding.line else "")


def relative(size: float | None) -> TableCell:
    """Write a relative difference with two digits."""
    if size is None:
        return TableCell("-")
    text = f"{size:.3g}" if size >= 100 else f"{size:.2g}"
    if 0 < size < 0.01:
        mantissa, _, power = f"{size:.1e}".partition("e")
        text = f"{mantissa}e{int(power)}"
    return TableCell(text, float(text))


def _kind(finding: Finding) -> str:
    return "allowed" if finding.allowed else "legitimate" if finding.legitimate else "wrong"


def _verdict(report: AuditReport) -> Section:
    wrong = [finding for finding in report.findings if finding.wrong]
    lines = []
    for finding in wrong:
        where = f" ({place(finding)})" if finding.file else ""
        point = f"with {finding.point}: " if finding.point else ""
        lines.append(f"{point}{finding.cause}: {finding.text or CAUSES[finding.cause]}{where}")
        if finding.proof:
            lines.append(f"proof: {finding.proof}")
        if finding.remedy:
            lines.append(f"remedy: {finding.remedy}")
    if wrong:
        return Verdict("Verdict", lines, "warning")
    sentence = audit_table.verdict(report)
    level: Literal["note", "good"] = "note" if report.findings else "good"
    return Verdict("Verdict", [f"{sentence[0].upper()}{sentence[1:]}."], level)


def _summary(report: AuditReport) -> Section:
    tiles = [
        Tile("numbers of ranks", ", ".join(map(str, report.ranks))),
        Tile("steps compared", str(report.steps)),
    ]
    if report.batch is not None:
        tiles.append(Tile("global batch", f"{report.batch:,}", "samples of a step"))
    of = f"of {report.samples:,}" if report.samples is not None else ""
    tiles += [
        Tile("samples seen twice", f"{report.seen_twice:,}", of),
        Tile("samples missed", f"{report.missed:,}", of),
    ]
    rows = []
    if report.resume_same is not None:
        outcome = "the same as the run that was not stopped"
        if not report.resume_same:
            outcome = "differs from the run that was not stopped"
            outcome += f", first at step {report.resume_step}" if report.resume_step else ""
        rows.append(Row("resume", "after resuming", outcome))
    return Summary("Summary", tiles, rows)


def _checks(report: AuditReport) -> Iterator[Section]:
    if report.checks:
        rows = [
            [check.topic, STATUSES[check.status], check.text, check.point]
            for check in report.checks
        ]
        yield _table("Checks", ["check", "outcome", "what was found"], rows)


def _findings(report: AuditReport) -> Iterator[Section]:
    if not report.findings:
        return
    heads = ["cause", "kind", "where", "first difference", "what", "proof", "remedy"]
    rows = [
        [
            finding.cause,
            _kind(finding),
            place(finding) or "-",
            _first(finding),
            finding.text or CAUSES[finding.cause],
            finding.proof or "-",
            finding.remedy or "-",
            finding.point,
        ]
        for finding in report.findings
    ]
    yield _table("Findings", heads, rows)


def _first(finding: Finding) -> str:
    """Write the first step, tensor and size of a finding."""
    size = None if finding.size is None else relative(finding.size)
    step = None if finding.step is None else f"step {finding.step}"
    place_text = ", ".join(filter(None, [step, finding.tensor]))
    return ": ".join(filter(None, [place_text, size])) or "-"


def _tensors(report: AuditReport) -> Iterator[Section]:
    if not report.tensors:
        return
    heads = ["stage", "tensor", "step", "ranks", "difference", "rounding explains"]
    rows = [
        [
            tensor.stage,
            tensor.name,
            number(tensor.step, "d"),
            f"{tensor.ranks[0]} and {tensor.ranks[1]}",
            relative(tensor.size),
            relative(tensor.bound),
            tensor.point,
        ]
        for tensor in report.tensors
    ]
    note = "Differences are relative, in the 2-norm of each tensor."
    yield _table("First tensors that differ", heads, rows, note)


def _experiments(report: AuditReport) -> Iterator[Section]:
    if not report.experiments:
        return
    timed = any(experiment.seconds is not None for experiment in report.experiments)
    heads = ["suspect", "change", "before", "after", "rounding explains", "vanishes"]
    rows = [
        [
            experiment.suspect,
            experiment.change,
            relative(experiment.before),
            relative(experiment.after),
            relative(experiment.bound),
            "yes" if experiment.explains else "no",
            *([seconds(experiment.seconds)] if timed else []),
            experiment.point,
        ]
        for experiment in report.experiments
    ]
    note = "Each row is a run with this change; a cause is named only if the difference vanishes."
    yield _table("Experiments", [*heads, *(["CPU time"] if timed else [])], rows, note)


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> Table:
    """Make a table; the last cell of each row is its point, shown if a row has one."""
    several = any(row[-1] for row in rows)
    shown = [row if several else row[:-1] for row in rows]
    names = [*heads, *(["point"] if several else [])]
    return table_of(title, [(name, False) for name in names], shown, note)


def _ledger(report: AuditReport) -> Iterator[Section]:
    drawn, data, left_out = panels(report)
    if not drawn:
        return
    legend = (
        "Rows are ranks, columns optimizer steps, and stripes samples, coloured by their number in "
        "the data set: ranks that read the same samples have the same stripes."
    )
    counts = "; ".join(panel.caption for panel in drawn)
    yield Ledger(
        "Samples of each rank",
        data=data,
        caption=legend,
        note=". ".join(filter(None, [counts, left_out])) + ".",
    )


# rank, step, epoch, samples, and the places of those seen before
Cell = tuple[int, int, int, Sequence[int], Sequence[int]]


class Panel(NamedTuple):
    """A run of the ledger."""

    name: str
    caption: str  # how many samples are seen again, and missed
    ranks: int
    steps: int
    cells: Sequence[Cell]
    epochs: Sequence[Mapping[str, object]]


def panels(report: AuditReport) -> tuple[list[Panel], dict[str, object], str]:
    """Arrange a ledger for ``ledger.js``; also what is left out."""
    keys = sorted({(row.point, row.world_size) for row in report.ledger})
    by_panel: dict[tuple[str, int], list[SampleRow]] = {key: [] for key in keys[:MOST_PANELS]}
    for row in report.ledger:
        if (row.point, row.world_size) in by_panel:
            by_panel[row.point, row.world_size].append(row)
    last = _last_step([row for rows in by_panel.values() for row in rows])
    made = [_panel(key, rows, last, report.samples) for key, rows in by_panel.items()]
    shown = [sample for panel in made for cell in panel.cells for sample in cell[3]]
    data = {
        "panels": [panel._asdict() for panel in made],
        "steps": max((panel.steps for panel in made), default=0),
        "first": 0 if report.samples is not None else min(shown, default=0),
        "last": max([*shown, (report.samples or 1) - 1]),
        "repeats": any(cell[4] for panel in made for cell in panel.cells),
    }
    left = []
    if any(row.step > last for rows in by_panel.values() for row in rows):
        left.append(f"the first {last} step{'s are' if last > 1 else ' is'} drawn")
    if any(size > MOST_RANKS for _, size in by_panel):
        left.append(f"the first {MOST_RANKS} ranks are drawn")
    if len(keys) > MOST_PANELS:
        left.append(f"{len(keys) - MOST_PANELS} more runs are not drawn")
    return made, data, ", and ".join(left)


def _last_step(rows: Sequence[SampleRow]) -> int:
    """Last step up to which the samples fit into a page, at least the first."""
    counts: dict[int, int] = {}
    for row in rows:
        if row.rank < MOST_RANKS:
            counts[row.step] = counts.get(row.step, 0) + len(row.samples)
    total, last = 0, 1
    for step in sorted(counts):
        total += counts[step]
        if total > MOST_SAMPLES:
            break
        last = step
    return last


def _panel(
    key: tuple[str, int], rows: Sequence[SampleRow], last: int, samples: int | None
) -> Panel:
    """Arrange one run."""
    point, world_size = key
    cells, epochs = list[Cell](), list[dict[str, object]]()
    repeats, missed, knows_missed = 0, 0, False
    ordered = sorted(rows, key=lambda row: (row.epoch, row.step, row.rank))
    ends = max((row.epoch for row in rows), default=0)
    for epoch, epoch_rows in groupby(ordered, key=lambda row: row.epoch):
        seen: set[int] = set()
        listed = list(epoch_rows)
        for row in listed:
            again = []
            for at, sample in enumerate(row.samples):
                if sample in seen:
                    again.append(at)
                seen.add(sample)
            repeats += len(again)
            if row.rank < MOST_RANKS and row.step <= last:
                cells.append((row.rank, row.step, epoch, list(row.samples), again))
        never: list[int] | None = None
        if samples is not None and epoch < ends and all(sample < samples for sample in seen):
            never = sorted(set(range(samples)) - seen)
            missed += len(never)
        steps = [row.step for row in listed]
        if min(steps) <= last:
            end = min(max(steps), last)
            epochs.append({"epoch": epoch, "from": min(steps), "to": end, "missed": never})
            knows_missed |= never is not None
    name = f"{world_size} rank{'s' if world_size > 1 else ''}"
    counts = f"{name}: {repeats or 'none'} seen before in an epoch"
    if knows_missed:
        counts += f", {missed or 'none'} missed in whole epochs"
    return Panel(
        f"{name}, with {point}" if point else name,
        f"with {point}, {counts}" if point else counts,
        min(world_size, MOST_RANKS),
        min(max((row.step for row in rows), default=0), last),
        cells,
        epochs,
    )
