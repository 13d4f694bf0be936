"""An audit for the terminal: a row per check, the causes below the row that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

from rich.console import RenderableType
from rich.text import Text

from simdp.reports.figures import WIDTH
from simdp.results.audit import CAUSES, AuditReport, Check, Finding

LABEL = 12  # columns of a row's topic
STATUS = 13  # columns of its status
TOPICS: dict[str, tuple[str, ...]] = {
    "collectives_differ": ("collectives",),
    "unused_parameters": ("gradients", "collectives"),
    "different_seed_split": ("samples",),
    "same_data_on_every_rank": ("samples",),
    "set_epoch_missing": ("epoch", "samples"),
    "unsynchronised_parameters": ("initial weights", "state", "replicas"),
    "schedule_steps_with_world_size": ("schedule", "update", "weights"),
    "resume_sampler_position": ("resume",),
    "resume_optimizer_state": ("resume",),
    "metric_averaged_wrongly": ("metric", "forward", "losses"),
    "sampler_padding_duplicates": ("samples",),
    "local_updates": ("weights", "update", "replicas"),
}
"""Checks that show a cause, the first that there is; all others are shown by gradients."""

USUAL = ("gradients", "weights", "update", "losses")


def page(report: AuditReport, width: int = WIDTH) -> RenderableType:
    """Write an audit."""
    return Text("\n".join(lines(report, width)))


def lines(report: AuditReport, width: int = WIDTH) -> list[str]:
    """List the lines of an audit, of at most ``width`` columns where a word fits."""
    written = [*wrap(title(report), width, subsequent_indent="  "), ""]
    points = dict.fromkeys([*(c.point for c in report.checks), *(f.point for f in report.findings)])
    for point in points:
        checks = [check for check in report.checks if check.point == point]
        findings = [finding for finding in report.findings if finding.point == point]
        written += _of_point(point, checks, findings, width)
    for note in report.notes:
        written += wrap(f"note: {note}", width, subsequent_indent="  ")
    return [*written, *wrap(verdict(report), width, subsequent_indent="  ")]


def title(report: AuditReport) -> str:
    """Write the name, the numbers of ranks and the length of an audit."""
    counts = [str(count) for count in report.ranks]
    numbers = " and ".join([", ".join(counts[:-1]), counts[-1]]) if counts[1:] else "".join(counts)
    ranks = f"{numbers} rank{'s' if numbers != '1' else ''}"
    steps = f"{report.steps} step{'s' if report.steps != 1 else ''}"
    batch = f" of {report.batch:,} samples" if report.batch else ""
    return f"audit of {report.name}: {ranks}, {steps}{batch}"


def verdict(report: AuditReport) -> str:
    """Write the last line: what is wrong, or that nothing is."""
    wrong = list(dict.fromkeys(finding.cause for finding in report.findings if finding.wrong))
    if wrong:
        return f"wrong: {', '.join(wrong)}"
    other = list(dict.fromkeys(finding.cause for finding in report.findings))
    if other:
        return f"nothing is wrong; it differs by {', '.join(other)}"
    return "nothing is wrong"


def _of_point(
    point: str, checks: Sequence[Check], findings: Sequence[Finding], width: int
) -> Iterator[str]:
    """List the rows of a point; where all is well it takes one."""
    indent = ""
    if point:
        if not findings and all(check.status == "ok" for check in checks):
            topics = ", ".join(check.topic for check in checks)
            yield from wrap(f"with {point}: ok ({topics})", width, subsequent_indent="  ")
            return
        yield from wrap(f"with {point}:", width, subsequent_indent="  ")
        indent = "  "
    placed = [_row_of(finding, checks) for finding in findings]
    for number, check in enumerate(checks):
        yield from _row(check, indent, width)
        for finding, place in zip(findings, placed, strict=True):
            if place == number:
                yield from _cause(finding, indent, width)
    for finding, place in zip(findings, placed, strict=True):
        if place is None:
            yield from _cause(finding, indent, width)
    if point:
        return
    yield ""


def _row_of(finding: Finding, checks: Sequence[Check]) -> int | None:
    """Number of the check that shows a finding; None without any."""
    topics = (finding.topic,) if finding.topic else TOPICS.get(finding.cause, USUAL)
    for topic in topics:
        for number, check in enumerate(checks):
            if check.topic == topic or check.topic.startswith(f"{topic} "):
                return number
    differing = [number for number, check in enumerate(checks) if check.status == "differ"]
    return differing[0] if differing else None


def _row(check: Check, indent: str, width: int) -> Iterator[str]:
    label = f"{indent}{check.topic:{LABEL}}{check.status:{STATUS}}"
    yield from _wrapped(label, check.text, width)


def _cause(finding: Finding, indent: str, width: int) -> Iterator[str]:
    """List the cause with its line at the right, the proof and the remedy."""
    mark = " (allowed)" if finding.allowed else " (legitimate)" if finding.legitimate else ""
    sentence = f"{finding.cause}{mark}: {finding.text or CAUSES[finding.cause]}"
    lead = f"{indent}  {'cause':{LABEL - 2}}"
    where = ""
    if finding.file is not None:
        where = Path(finding.file).name + (f":{finding.line}" if finding.line else "")
    first, *others = _wrapped(lead, sentence, width - (len(where) + 2 if where else 0)) or [lead]
    yield f"{first:{width - len(where)}}{where}" if where else first
    yield from others
    for label, text in (("proof", finding.proof), ("remedy", finding.remedy)):
        if text:
            yield from _wrapped(f"{indent}  {label:{LABEL - 2}}", text, width)


def _wrapped(lead: str, text: str, width: int) -> list[str]:
    """Wrap a text behind a label, with the label's width as indent."""
    blank = " " * len(lead)
    wrapped = wrap(
        text, width, initial_indent=lead, subsequent_indent=blank, break_on_hyphens=False
    )
    return wrapped or [lead.rstrip()]
