"""A diagnosis for the terminal: twenty lines, the rest is in its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, TypeGuard

from rich.console import RenderableType
from rich.text import Text

from simdp.reports.figures import WIDTH, nbytes, percent, seconds
from simdp.results.diagnosis import CollectiveRow, Diagnosis, Finding, Remedy

LINES = 20  # lines of a diagnosis
MOST_REPORTED = 32  # lines for a job without a trace, which has sentences only
MOST_CAUSES = 3  # causes of texts with all they say
MENTIONED = 0.01  # least part of a step of the causes that are listed
LEAST_OFF = 5e-4  # least error of a replay that is shown
TRACE_OF = 1e-4  # least part of a step that is shown
MAIN_LINES = 5  # most lines of evidence of the main cause
SHOWN_COLLECTIVES = 3
SHOWN_BUCKETS = 6
SHOWN_REMEDIES = 2


def page(diagnosis: Diagnosis, name: str = "") -> RenderableType:
    """Write a diagnosis of traces, flight records or logging data."""
    return Text("\n".join(lines(diagnosis, name)))


def lines(diagnosis: Diagnosis, name: str = "") -> list[str]:
    """List the lines of a diagnosis; ``name`` is the file or folder."""
    head = [
        *wrap(headline(diagnosis, name), WIDTH),
        *_texts(diagnosis),
        *_parts(diagnosis),
        *_expected(diagnosis),
    ]
    verdict = [*_verdict(diagnosis)]
    written = [*head, *verdict, *_mismatches(diagnosis), *_ranks(diagnosis), *_buckets(diagnosis)]
    most = MOST_REPORTED if _is_shown(diagnosis) else LINES
    written += _collectives(diagnosis, most - len(written))
    room = max(most - len(written), 0)
    return [*written, *_remarks(diagnosis.remarks, room)][:most]


def headline(diagnosis: Diagnosis, name: str) -> str:
    """Write the number of ranks and the step time."""
    world = diagnosis.world_size or 0
    of = f" of {world}" if world > diagnosis.num_ranks else ""
    who = f"{diagnosis.num_ranks}{of} rank{'s' * (diagnosis.num_ranks > 1 or bool(of))}"
    title = f"{name}: {who}" if name else who
    if diagnosis.source == "log":
        kinds = dict.fromkeys(kind for row in diagnosis.sources for kind in row.kinds)
        ranks = f", {who}" if diagnosis.num_ranks else ""
        step = f", a step takes {seconds(diagnosis.step_time_s)}" if diagnosis.step_time_s else ""
        return f"{name or 'text'}: {'; '.join(kinds)}{ranks}{step}"
    if diagnosis.step_time_s is None:
        return f"{title}, no steps" if diagnosis.source in ("kineto", "simdp") else title
    line = f"{title}, step {seconds(diagnosis.step_time_s)}"
    if diagnosis.num_steps == 1 and diagnosis.num_ranks > 1:
        line += f" (a single one; {seconds(diagnosis.spread_s['max'])} on the slowest rank)"
    elif diagnosis.num_steps > 1 and diagnosis.spread_s:
        times = [seconds(diagnosis.spread_s[key]) for key in ("min", "median", "max")]
        line += f" (mean of {diagnosis.num_steps}; min, median, max {', '.join(times)})"
    return line


def _texts(diagnosis: Diagnosis) -> Iterator[str]:
    """List the texts besides traces and dumps."""
    if diagnosis.source != "log" and diagnosis.sources:
        texts = [f"{source.name} ({', '.join(source.kinds)})" for source in diagnosis.sources]
        yield from wrap(f"  and text: {'; '.join(texts)}", WIDTH, subsequent_indent="    ")


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    """Split the devices' time, and the part that is not compute by cause."""
    step = diagnosis.step_time_s
    parts = [
        ("compute", diagnosis.compute_s),
        ("communication in the open", diagnosis.exposed_comm_s),
        ("hidden", diagnosis.hidden_comm_s),
        ("copies", diagnosis.copy_s),
        ("idle", diagnosis.idle_s),
    ]
    shares = [f"{name} {_of(value, step)}" for name, value in parts if _is_worth(value, step)]
    if shares:
        yield from wrap(", ".join(shares), WIDTH, initial_indent="  ", subsequent_indent="  ")
    why = [
        ("waiting for ranks", diagnosis.wait_s),
        ("transfers", diagnosis.transfer_s),
        ("data late", diagnosis.input_s),
        ("host late", diagnosis.launch_s),
    ]
    shares = [f"{name} {_of(value, step)}" for name, value in why if _is_worth(value, step)]
    if shares:
        mean = ", mean over all ranks" if diagnosis.num_ranks > 1 else ""
        line = f"of what is not compute{mean}: {', '.join(shares)}"
        yield from wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _expected(diagnosis: Diagnosis) -> Iterator[str]:
    """Write the expected times of a job without a trace."""
    if diagnosis.expected is not None:
        line = f"should take: {expected(diagnosis.expected)}"
        yield from wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if diagnosis.source == "reported":
        yield from wrap(
            f"{diagnosis.machine_from}", WIDTH, initial_indent="  ", subsequent_indent="  "
        )


def expected(times: Mapping[str, Any]) -> str:
    """Write the expected step time with its 90 % interval."""
    low, high = times["interval_s"]
    return (
        f"{seconds(times['step_time_s'])} (simulated; 90 %: {seconds(low)} to {seconds(high)}), of "
        f"it compute {seconds(times['compute_s'])}, communication in the open "
        f"{seconds(times['exposed_comm_s'])}"
    )


def _is_worth(value: float | None, step: float | None) -> TypeGuard[float]:
    """Return whether a time is longer than rounding errors."""
    return value is not None and value > TRACE_OF * (step or 0.0)


def _of(value: float, step: float | None) -> str:
    return seconds(value) + (f" ({percent(value / step)})" if step else "")


def _is_shown(diagnosis: Diagnosis) -> bool:
    """Return whether causes have sentences, and there are no rows below them."""
    return diagnosis.source in ("reported", "log")


def _verdict(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.verdict:
        if not diagnosis.mismatches and diagnosis.source == "flight_record":
            yield "verdict: ranks agree on all collectives that their dumps hold"
        elif diagnosis.source == "log":
            yield "verdict: none of the known causes"
        return
    first, *others = diagnosis.verdict
    written = wrap(f"verdict: {finding(first)}", WIDTH, subsequent_indent="  ")
    yield from written[: None if _is_shown(diagnosis) or first.confidence else MAIN_LINES]
    yield from _comparison(first)
    for number, remedy in enumerate(different(first.remedies)[:SHOWN_REMEDIES]):
        line = f"  helps: {helps(diagnosis, remedy, with_base=not number)}"
        yield from wrap(line, WIDTH, subsequent_indent="    ")
    causes = (
        others
        if diagnosis.source == "reported"
        else [cause for cause in others if cause.confidence]
    )
    for cause in causes[: None if diagnosis.source == "reported" else MOST_CAUSES - 1]:
        yield from wrap(f"also: {finding(cause)}", WIDTH, subsequent_indent="  ")
        yield from _comparison(cause)
    left = [
        cause for cause in others if cause not in causes[: MOST_CAUSES - 1] and _is_listed(cause)
    ]
    also = [f"{cause.cause}{share_of(cause)}{ranks_of(cause)}" for cause in left]
    if diagnosis.source != "reported" and also:
        yield from wrap(f"also: {', '.join(also)}", WIDTH, subsequent_indent="  ")


def _comparison(cause: Finding) -> Iterator[str]:
    for line in comparison(cause):
        yield from wrap(f"  {line}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def comparison(cause: Finding) -> Iterator[str]:
    """Write what is expected, what was obtained, and the remedy of a finding in text."""
    for label, text in (
        ("expected", cause.expected),
        ("obtained", cause.obtained),
        ("helps", cause.remedy),
    ):
        if text:
            yield f"{label}: {text}"


def _is_listed(cause: Finding) -> bool:
    """Return whether a cause is worth a place in the list of other causes."""
    return cause.share is None or cause.share >= MENTIONED or cause.cause == "desynchronised"


def finding(cause: Finding) -> str:
    """Write a cause with its share, its ranks and its evidence."""
    return f"{cause.cause}{share_of(cause)}{ranks_of(cause)}: {cause.evidence}"


def helps(diagnosis: Diagnosis, remedy: Remedy, *, with_base: bool = True) -> str:
    """Write a change and the step time with it; and the step that it was simulated from."""
    gain = str(seconds(remedy.step_time_s))
    if diagnosis.replayed_s:
        less = f"{percent(1 - remedy.step_time_s / diagnosis.replayed_s)} less"
        base = f" instead of {seconds(diagnosis.replayed_s)}"
        base += f" ({less}, simulated{replay_error(diagnosis)})"
        gain += base if with_base else f" ({less})"
    return f"{remedy.change}: {gain}"


def replay_error(diagnosis: Diagnosis) -> str:
    """Write how far the replay without a remedy is from the trace's step, after a semicolon."""
    if not diagnosis.step_time_s or not diagnosis.replayed_s or diagnosis.source == "reported":
        return ""
    off = diagnosis.replayed_s / diagnosis.step_time_s - 1
    if abs(off) < LEAST_OFF:
        return "; base as in the trace"
    return f"; base {percent(abs(off))} {'above' if off > 0 else 'below'} the trace"


def different(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Drop remedies that hardly differ from the one before."""
    kept = list[Remedy]()
    for remedy in remedies:
        if not kept or abs(remedy.step_time_s / kept[-1].step_time_s - 1) > 0.001:
            kept.append(remedy)
    return kept


def share_of(cause: Finding) -> str:
    """Write a cause's share of the step, or how sure it is; empty if it has neither."""
    if cause.share is None:
        return f", {cause.confidence}" if cause.confidence else ""
    return "" if cause.cause == "desynchronised" else f" {percent(cause.share)}"


def ranks_of(cause: Finding) -> str:
    """List the first ranks that cause a finding, in brackets."""
    if not cause.ranks:
        return ""
    listed = ", ".join(map(str, cause.ranks[:8])) + (" ..." if len(cause.ranks) > 8 else "")
    return f" (rank{'s' * (len(cause.ranks) > 1)} {listed})"


def _mismatches(diagnosis: Diagnosis) -> Iterator[str]:
    for row in diagnosis.mismatches[1:4]:
        yield f"  {row.name}, {row.sequence} of group {row.group or '?'}: {row.state}"[:WIDTH]
    if len(diagnosis.mismatches) > 4:
        yield f"  and {len(diagnosis.mismatches) - 4} more"


def _ranks(diagnosis: Diagnosis) -> Iterator[str]:
    """List the longest waits between ranks, in one line."""
    if any(cause.cause == "straggler" and cause.ranks for cause in diagnosis.verdict[:1]):
        return  # the verdict has the same figure
    waits = [f"{w.rank} for {w.late_rank} {seconds(w.wait_s)}" for w in diagnosis.waits[:4]]
    if waits:
        yield from wrap(f"ranks wait, a step: {', '.join(waits)}", WIDTH, subsequent_indent="  ")[
            :2
        ]


def _collectives(diagnosis: Diagnosis, room: int) -> list[str]:
    """List the longest collectives in at most ``room`` lines."""
    rows = [row for row in diagnosis.collectives if row.transfer_s + row.wait_s > 0]
    if not rows or room < 2:
        return []
    head = "collectives (mean transfer + wait, bus bandwidth, what the machine should take)"
    foot = list[str]()
    if diagnosis.machine_from is not None and any(row.nbytes for row in rows):
        against = "" if diagnosis.machine is None else f"{diagnosis.machine}, "
        line = f"  machine: {against}{diagnosis.machine_from}"
        foot = wrap(line, WIDTH, subsequent_indent="    ")
    shown = max(min(SHOWN_COLLECTIVES, room - 1 - len(foot)), 1)
    return [head, *(_collective(row)[:WIDTH] for row in rows[:shown]), *foot]


def _collective(row: CollectiveRow) -> str:
    size = "size unknown" if row.nbytes is None else nbytes(row.nbytes)
    how = " ".join(word for word in (row.algorithm, row.protocol) if word)
    line = f"  {row.count} x {row.name} {size}" + (f" {how}" if how else "")
    line += f": {seconds(row.transfer_s)} + {seconds(row.wait_s)}"
    if row.busbw is not None:
        line += f", {row.busbw / 1e9:.3g} GB/s"
    return line + (f", {seconds(row.expected_s)}" if row.expected_s is not None else "")


def _buckets(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.buckets:
        return
    sizes = [f"{bucket.num_elements:,}" for bucket in diagnosis.buckets[:SHOWN_BUCKETS]]
    more = f" and {len(diagnosis.buckets) - SHOWN_BUCKETS} more" * (
        len(diagnosis.buckets) > SHOWN_BUCKETS
    )
    dtypes = "/".join(dict.fromkeys(bucket.dtype for bucket in diagnosis.buckets))
    line = f"buckets: {' / '.join(sizes)}{more} {dtypes}"
    if diagnosis.bucket_rule:
        line += f", {diagnosis.bucket_rule}"
    yield from wrap(line, WIDTH, subsequent_indent="  ")


def _remarks(remarks: Sequence[str], room: int) -> Iterator[str]:
    """List the remarks that fit; the last line counts the others."""
    for place, remark in enumerate(remarks):
        written = wrap(f"note: {remark}", WIDTH, subsequent_indent="  ")
        last = place == len(remarks) - 1
        if len(written) > room - (not last):
            if room > 0:
                yield f"note: {len(remarks) - place} more in --json"
            return
        room -= len(written)
        yield from written
