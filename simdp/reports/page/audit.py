"""Page of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from shlex import join
from typing import Any

from simdp.reports import audit_table
from simdp.reports.figures import Row, TableCell, number, seconds
from simdp.reports.sections import (
    Ledger,
    Page,
    Section,
    Source,
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


def page(found: AuditReport, command: Sequence[str] = (), title: str = "") -> Page:
    """Make the page of an audit; ``title`` is the script or scenario, if not its name."""
    name = title or found.name
    sections = [
        _verdict(found),
        _summary(found),
        *_checks(found),
        *_findings(found),
        *_tensors(found),
        *_experiments(found),
        *_ledger(found),
        *[Verdict("Notes", found.notes) for _ in found.notes[:1]],
        *_reproduce(command),
    ]
    about = audit_table.title(found)
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


def _verdict(found: AuditReport) -> Section:
    wrong = [one for one in found.findings if one.wrong]
    lines = []
    for one in wrong:
        where = f" ({place(one)})" if one.file else ""
        point = f"with {one.point}: " if one.point else ""
        lines.append(f"{point}{one.cause}: {one.text or CAUSES[one.cause]}{where}")
        if one.proof:
            lines.append(f"proof: {one.proof}")
        if one.remedy:
            lines.append(f"remedy: {one.remedy}")
    if wrong:
        return Verdict("Verdict", lines, "warning")
    said = audit_table.verdict(found)
    level: Any = "note" if found.findings else "good"
    return Verdict("Verdict", [f"{said[0].upper()}{said[1:]}."], level)


def _summary(found: AuditReport) -> Section:
    tiles = [
        Tile("numbers of ranks", ", ".join(map(str, found.ranks))),
        Tile("steps compared", str(found.steps)),
    ]
    if found.batch is not None:
        tiles.append(Tile("global batch", f"{found.batch:,}", "samples of a step"))
    of = f"of {found.samples:,}" if found.samples is not None else ""
    tiles += [
        Tile("samples seen twice", f"{found.seen_twice:,}", of),
        Tile("samples missed", f"{found.missed:,}", of),
    ]
    rows = []
    if found.resume_same is not None:
        said = "the same as the run that was not stopped"
        if not found.resume_same:
            said = "differs from the run that was not stopped"
            said += f", first at step {found.resume_step}" if found.resume_step else ""
        rows.append(Row("resume", "after resuming", said))
    return Summary("Summary", tiles, rows)


def _checks(found: AuditReport) -> Iterator[Section]:
    if found.checks:
        rows = [[one.topic, STATUSES[one.status], one.text, one.point] for one in found.checks]
        yield _table("Checks", ["check", "outcome", "what was found"], rows)


def _findings(found: AuditReport) -> Iterator[Section]:
    if not found.findings:
        return
    heads = ["cause", "kind", "where", "first difference", "what", "proof", "remedy"]
    rows = [
        [
            one.cause,
            _kind(one),
            place(one) or "-",
            _first(one),
            one.text or CAUSES[one.cause],
            one.proof or "-",
            one.remedy or "-",
            one.point,
        ]
        for one in found.findings
    ]
    yield _table("Findings", heads, rows)


def _first(finding: Finding) -> str:
    """Write the first step, tensor and size of a finding."""
    size = None if finding.size is None else relative(finding.size)
    step = None if finding.step is None else f"step {finding.step}"
    said = ", ".join(filter(None, [step, finding.tensor]))
    return ": ".join(filter(None, [said, size])) or "-"


def _tensors(found: AuditReport) -> Iterator[Section]:
    if not found.tensors:
        return
    heads = ["stage", "tensor", "step", "ranks", "difference", "rounding explains"]
    rows = [
        [
            one.stage,
            one.name,
            number(one.step, "d"),
            f"{one.ranks[0]} and {one.ranks[1]}",
            relative(one.size),
            relative(one.bound),
            one.point,
        ]
        for one in found.tensors
    ]
    note = "Differences are relative, in the 2-norm of each tensor."
    yield _table("First tensors that differ", heads, rows, note)


def _experiments(found: AuditReport) -> Iterator[Section]:
    if not found.experiments:
        return
    timed = any(one.seconds is not None for one in found.experiments)
    heads = ["suspect", "change", "before", "after", "rounding explains", "vanishes"]
    rows = [
        [
            one.suspect,
            one.change,
            relative(one.before),
            relative(one.after),
            relative(one.bound),
            "yes" if one.explains else "no",
            *([seconds(one.seconds)] if timed else []),
            one.point,
        ]
        for one in found.experiments
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


def _ledger(found: AuditReport) -> Iterator[Section]:
    data, left_out = panels(found)
    if not data["panels"]:
        return
    said = (
        "Rows are ranks, columns optimizer steps, and stripes samples, coloured by their number in "
        "the data set: ranks that read the same samples have the same stripes."
    )
    told = "; ".join(one["said"] for one in data["panels"])
    yield Ledger(
        "Samples of each rank",
        data=data,
        said=said,
        note=". ".join(filter(None, [told, left_out])) + ".",
    )


def panels(found: AuditReport) -> tuple[dict[str, Any], str]:
    """Arrange a ledger for ``ledger.js``; also what is left out."""
    keys = sorted({(row.point, row.world_size) for row in found.ledger})
    by_panel: dict[tuple[str, int], list[SampleRow]] = {key: [] for key in keys[:MOST_PANELS]}
    for row in found.ledger:
        if (row.point, row.world_size) in by_panel:
            by_panel[row.point, row.world_size].append(row)
    last = _last_step([row for rows in by_panel.values() for row in rows])
    made = [_panel(key, rows, last, found.samples) for key, rows in by_panel.items()]
    shown = [sample for one in made for cell in one["cells"] for sample in cell[3]]
    data = {
        "panels": made,
        "steps": max((one["steps"] for one in made), default=0),
        "first": 0 if found.samples is not None else min(shown, default=0),
        "last": max([*shown, (found.samples or 1) - 1]),
        "repeats": any(cell[4] for one in made for cell in one["cells"]),
    }
    left = []
    if any(row.step > last for rows in by_panel.values() for row in rows):
        left.append(f"the first {last} step{'s are' if last > 1 else ' is'} drawn")
    if any(size > MOST_RANKS for _, size in by_panel):
        left.append(f"the first {MOST_RANKS} ranks are drawn")
    if len(keys) > MOST_PANELS:
        left.append(f"{len(keys) - MOST_PANELS} more runs are not drawn")
    return data, ", and ".join(left)


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
) -> dict[str, Any]:
    """Arrange one run: cells of rank, step, epoch, samples, and places of those seen before."""
    point, world_size = key
    cells = []
    epochs = []
    repeats = missed = 0
    ordered = sorted(rows, key=lambda row: (row.epoch, row.step, row.rank))
    ends = max((row.epoch for row in rows), default=0)
    for epoch, each in groupby(ordered, key=lambda row: row.epoch):
        seen: set[int] = set()
        listed = list(each)
        for row in listed:
            again = []
            for at, sample in enumerate(row.samples):
                if sample in seen:
                    again.append(at)
                seen.add(sample)
            repeats += len(again)
            if row.rank < MOST_RANKS and row.step <= last:
                cells.append([row.rank, row.step, epoch, list(row.samples), again])
        never: list[int] | None = None
        if samples is not None and epoch < ends and all(sample < samples for sample in seen):
            never = sorted(set(range(samples)) - seen)
            missed += len(never)
        steps = [row.step for row in listed]
        if min(steps) <= last:
            end = min(max(steps), last)
            epochs.append({"epoch": epoch, "from": min(steps), "to": end, "missed": never})
    name = f"{world_size} rank{'s' if world_size > 1 else ''}"
    said = f"{name}: {repeats or 'none'} seen before in an epoch"
    if any(one["missed"] is not None for one in epochs):
        said += f", {missed or 'none'} missed in whole epochs"
    return {
        "name": f"{name}, with {point}" if point else name,
        "said": f"with {point}, {said}" if point else said,
        "ranks": min(world_size, MOST_RANKS),
        "steps": min(max((row.step for row in rows), default=0), last),
        "cells": cells,
        "epochs": epochs,
    }


def _reproduce(command: Sequence[str]) -> Iterator[Section]:
    if command:
        given = join(["python", "-m", "simdp", *command])
        yield Source("How to reproduce it", source=given, name="command line")
