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


def page(found: Diagnosis, name: str = "") -> RenderableType:
    """Write a diagnosis of traces, flight records or logging data."""
    return Text("\n".join(lines(found, name)))


def lines(found: Diagnosis, name: str = "") -> list[str]:
    """List the lines of a diagnosis; ``name`` is the file or folder."""
    head = [*wrap(headline(found, name), WIDTH), *_texts(found), *_parts(found), *_expected(found)]
    verdict = [*_verdict(found)]
    told = [*head, *verdict, *_mismatches(found), *_ranks(found), *_buckets(found)]
    most = MOST_REPORTED if _is_told(found) else LINES
    told += _collectives(found, most - len(told))
    room = max(most - len(told), 0)
    return [*told, *_remarks(found.remarks, room)][:most]


def headline(found: Diagnosis, name: str) -> str:
    """Write the number of ranks and the step time."""
    world = found.world_size or 0
    of = f" of {world}" if world > found.num_ranks else ""
    who = f"{found.num_ranks}{of} rank{'s' * (found.num_ranks > 1 or bool(of))}"
    title = f"{name}: {who}" if name else who
    if found.source == "log":
        kinds = dict.fromkeys(kind for row in found.sources for kind in row.kinds)
        ranks = f", {who}" if found.num_ranks else ""
        step = f", a step takes {seconds(found.step_time_s)}" if found.step_time_s else ""
        return f"{name or 'text'}: {'; '.join(kinds)}{ranks}{step}"
    if found.step_time_s is None:
        return f"{title}, no steps" if found.source in ("kineto", "simdp") else title
    line = f"{title}, step {seconds(found.step_time_s)}"
    if found.num_steps == 1 and found.num_ranks > 1:
        line += f" (a single one; {seconds(found.spread_s['max'])} on the slowest rank)"
    elif found.num_steps > 1 and found.spread_s:
        times = [seconds(found.spread_s[key]) for key in ("min", "median", "max")]
        line += f" (mean of {found.num_steps}; min, median, max {', '.join(times)})"
    return line


def _texts(found: Diagnosis) -> Iterator[str]:
    """List the texts besides traces and dumps."""
    if found.source != "log" and found.sources:
        told = [f"{one.name} ({', '.join(one.kinds)})" for one in found.sources]
        yield from wrap(f"  and text: {'; '.join(told)}", WIDTH, subsequent_indent="    ")


def _parts(found: Diagnosis) -> Iterator[str]:
    """Split the devices' time, and the part that is not compute by cause."""
    step = found.step_time_s
    parts = [
        ("compute", found.compute_s),
        ("communication in the open", found.exposed_comm_s),
        ("hidden", found.hidden_comm_s),
        ("copies", found.copy_s),
        ("idle", found.idle_s),
    ]
    told = [f"{name} {_of(value, step)}" for name, value in parts if _is_worth(value, step)]
    if told:
        yield from wrap(", ".join(told), WIDTH, initial_indent="  ", subsequent_indent="  ")
    why = [
        ("waiting for ranks", found.wait_s),
        ("transfers", found.transfer_s),
        ("data late", found.input_s),
        ("host late", found.launch_s),
    ]
    told = [f"{name} {_of(value, step)}" for name, value in why if _is_worth(value, step)]
    if told:
        mean = ", mean over all ranks" if found.num_ranks > 1 else ""
        line = f"of what is not compute{mean}: {', '.join(told)}"
        yield from wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _expected(found: Diagnosis) -> Iterator[str]:
    """Write the expected times of a job without a trace."""
    if found.expected is not None:
        line = f"should take: {expected(found.expected)}"
        yield from wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if found.source == "reported":
        yield from wrap(f"{found.machine_from}", WIDTH, initial_indent="  ", subsequent_indent="  ")


def expected(told: Mapping[str, Any]) -> str:
    """Write the expected step time with its 90 % interval."""
    low, high = told["interval_s"]
    return (
        f"{seconds(told['step_time_s'])} (simulated; 90 %: {seconds(low)} to {seconds(high)}), of "
        f"it compute {seconds(told['compute_s'])}, communication in the open "
        f"{seconds(told['exposed_comm_s'])}"
    )


def _is_worth(value: float | None, step: float | None) -> TypeGuard[float]:
    """Return whether a time is longer than rounding errors."""
    return value is not None and value > TRACE_OF * (step or 0.0)


def _of(value: float, step: float | None) -> str:
    return seconds(value) + (f" ({percent(value / step)})" if step else "")


def _is_told(found: Diagnosis) -> bool:
    """Return whether causes have sentences, and there are no rows below them."""
    return found.source in ("reported", "log")


def _verdict(found: Diagnosis) -> Iterator[str]:
    if not found.verdict:
        if not found.mismatches and found.source == "flight_record":
            yield "verdict: ranks agree on all collectives that their dumps hold"
        elif found.source == "log":
            yield "verdict: none of the known causes"
        return
    first, *others = found.verdict
    written = wrap(f"verdict: {finding(first)}", WIDTH, subsequent_indent="  ")
    yield from written[: None if _is_told(found) or first.confidence else MAIN_LINES]
    yield from _comparison(first)
    for number, remedy in enumerate(different(first.remedies)[:SHOWN_REMEDIES]):
        line = f"  helps: {helps(found, remedy, with_base=not number)}"
        yield from wrap(line, WIDTH, subsequent_indent="    ")
    told = others if found.source == "reported" else [one for one in others if one.confidence]
    for one in told[: None if found.source == "reported" else MOST_CAUSES - 1]:
        yield from wrap(f"also: {finding(one)}", WIDTH, subsequent_indent="  ")
        yield from _comparison(one)
    left = [one for one in others if one not in told[: MOST_CAUSES - 1] and _is_listed(one)]
    also = [f"{one.cause}{share_of(one)}{ranks_of(one)}" for one in left]
    if found.source != "reported" and also:
        yield from wrap(f"also: {', '.join(also)}", WIDTH, subsequent_indent="  ")


def _comparison(one: Finding) -> Iterator[str]:
    for line in comparison(one):
        yield from wrap(f"  {line}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def comparison(one: Finding) -> Iterator[str]:
    """Write what is expected, what was obtained, and the remedy of a finding in text."""
    for label, text in (
        ("expected", one.expected),
        ("obtained", one.obtained),
        ("helps", one.remedy),
    ):
        if text:
            yield f"{label}: {text}"


def _is_listed(one: Finding) -> bool:
    """Return whether a cause is worth a place in the list of other causes."""
    return one.share is None or one.share >= MENTIONED or one.cause == "desynchronised"


def finding(one: Finding) -> str:
    """Write a cause with its share, its ranks and its evidence."""
    return f"{one.cause}{share_of(one)}{ranks_of(one)}: {one.evidence}"


def helps(found: Diagnosis, remedy: Remedy, *, with_base: bool = True) -> str:
    """Write a change and the step time with it; and the step that it was simulated from."""
    gain = str(seconds(remedy.step_time_s))
    if found.replayed_s:
        less = f"{percent(1 - remedy.step_time_s / found.replayed_s)} less"
        base = f" instead of {seconds(found.replayed_s)} ({less}, simulated{replay_error(found)})"
        gain += base if with_base else f" ({less})"
    return f"{remedy.change}: {gain}"


def replay_error(found: Diagnosis) -> str:
    """Write how far the replay without a remedy is from the trace's step, after a semicolon."""
    if not found.step_time_s or not found.replayed_s or found.source == "reported":
        return ""
    off = found.replayed_s / found.step_time_s - 1
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


def share_of(found: Finding) -> str:
    """Write a cause's share of the step, or how sure it is; empty if it has neither."""
    if found.share is None:
        return f", {found.confidence}" if found.confidence else ""
    return "" if found.cause == "desynchronised" else f" {percent(found.share)}"


def ranks_of(found: Finding) -> str:
    """List the first ranks that cause a finding, in brackets."""
    if not found.ranks:
        return ""
    listed = ", ".join(map(str, found.ranks[:8])) + (" ..." if len(found.ranks) > 8 else "")
    return f" (rank{'s' * (len(found.ranks) > 1)} {listed})"


def _mismatches(found: Diagnosis) -> Iterator[str]:
    for row in found.mismatches[1:4]:
        yield f"  {row.name}, {row.sequence} of group {row.group or '?'}: {row.state}"[:WIDTH]
    if len(found.mismatches) > 4:
        yield f"  and {len(found.mismatches) - 4} more"


def _ranks(found: Diagnosis) -> Iterator[str]:
    """List the longest waits between ranks, in one line."""
    if any(one.cause == "straggler" and one.ranks for one in found.verdict[:1]):
        return  # the verdict has the same figure
    told = [f"{w.rank} for {w.late_rank} {seconds(w.wait_s)}" for w in found.waits[:4]]
    if told:
        yield from wrap(f"ranks wait, a step: {', '.join(told)}", WIDTH, subsequent_indent="  ")[:2]


def _collectives(found: Diagnosis, room: int) -> list[str]:
    """List the longest collectives in at most ``room`` lines."""
    rows = [row for row in found.collectives if row.transfer_s + row.wait_s > 0]
    if not rows or room < 2:
        return []
    head = "collectives (mean transfer + wait, bus bandwidth, what the machine should take)"
    foot = list[str]()
    if found.machine_from is not None and any(row.nbytes for row in rows):
        against = "" if found.machine is None else f"{found.machine}, "
        line = f"  machine: {against}{found.machine_from}"
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


def _buckets(found: Diagnosis) -> Iterator[str]:
    if not found.buckets:
        return
    told = [f"{bucket.num_elements:,}" for bucket in found.buckets[:SHOWN_BUCKETS]]
    more = f" and {len(found.buckets) - SHOWN_BUCKETS} more" * (len(found.buckets) > SHOWN_BUCKETS)
    dtypes = "/".join(dict.fromkeys(bucket.dtype for bucket in found.buckets))
    line = f"buckets: {' / '.join(told)}{more} {dtypes}"
    if found.bucket_rule:
        line += f", {found.bucket_rule}"
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
