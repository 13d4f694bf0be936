"""Out of step: collectives of profiler traces that ranks disagree on, or that some lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from simdp.results.diagnosis import MatchRow
from simdp.studies.diagnose.agreement import (
    FULLY_MATCHED,
    UNDECIDED,
    RankCall,
    compared,
    ranks_in_words,
    who_left_one_out,
)
from simdp.studies.diagnose.meetings import Matched, Meeting, chosen_calls
from simdp.studies.diagnose.timeline import RankTimeline


def mismatches(lines: Sequence[RankTimeline], found: Matched) -> list[MatchRow]:
    """Collectives that ranks disagree on; not of groups that had to be matched by their ends.

    Parameters
    ----------
    lines : sequence of Timeline
        Of the ranks.
    found : Matched
        Their collectives.
    """
    rows = list(_lacking(lines, found))
    rows += [
        row
        for meeting in found.meetings
        if not _by_ends(meeting.group, found) and (row := _differing(lines, meeting))
    ]
    return rows


def _by_ends(group: str, found: Matched) -> bool:
    """Whether a group's collectives were matched by their ends."""
    return any(key == group or key.startswith(f"{group} of ") for key in found.by_ends)


def _called(line: RankTimeline, place: int) -> RankCall:
    calls = line.trace.collectives
    sizes = (int(calls.num_elements[place]),), (int(calls.out_elements[place]),)
    known = tuple(size if size[0] >= 0 else () for size in sizes)
    return RankCall(calls.names[calls.name[place]], known[0], known[1], (str(calls.dtype[place]),))


def _differing(lines: Sequence[RankTimeline], meeting: Meeting) -> MatchRow | None:
    """A row if the ranks of a meeting did not call the same; sizes that are not known are."""
    ranks = [lines[place].rank for place in meeting.ranks.tolist()]
    called = [
        _called(lines[i], place)
        for i, place in zip(meeting.ranks.tolist(), meeting.places.tolist(), strict=True)
    ]
    if not all(call.sizes for call in called):
        called = [call._replace(sizes=(), out_sizes=()) for call in called]
    if not all(call.out_sizes for call in called):
        called = [call._replace(out_sizes=()) for call in called]
    state, differs, odd = compared(dict(zip(ranks, called, strict=True)), meeting.is_complete)
    if state in (FULLY_MATCHED, UNDECIDED):
        return None
    name = Counter(call.name for call in called).most_common(1)[0][0]
    return MatchRow(meeting.group, meeting.number, name, state, (), odd, differs)


def _lacking(lines: Sequence[RankTimeline], found: Matched) -> Iterator[MatchRow]:
    """Rows for steps in which a rank calls fewer collectives of a group than others do."""
    if len(lines) < 2 or any(not len(line.trace.steps) for line in lines):
        return
    groups = sorted({str(g) for line in lines for g in line.trace.collectives.group.tolist()})
    for group in groups:
        if _by_ends(group, found):
            continue
        members = [line for line in lines if _takes_part(line, group)]
        steps = [set(line.number.tolist()) for line in members]
        for step in sorted(set.intersection(*steps)) if len(members) > 1 else ():
            row = _lacking_in(members, group, step)
            if row is not None:
                yield row


def _takes_part(line: RankTimeline, group: str) -> bool:
    known = line.trace.groups.get(group)
    if known is not None and known.ranks is not None:
        return line.rank in known.ranks
    return group in set(line.trace.collectives.group.tolist())


def _lacking_in(members: Sequence[RankTimeline], group: str, step: int) -> MatchRow | None:
    calls = dict[int, list[RankCall]]()
    for line in members:
        columns, chosen = line.trace.collectives, chosen_calls(line)
        place = int(np.flatnonzero(line.number == step)[0])
        mine = chosen[(columns.group[chosen] == group) & (columns.step[chosen] == place)]
        calls[line.rank] = [_called(line, one) for one in mine.tolist()]
    most = max(len(listed) for listed in calls.values())
    fewer = tuple(rank for rank, listed in calls.items() if len(listed) < most)
    if not fewer:
        return None
    at = _first_difference(list(calls.values()))
    left = who_left_one_out({rank: listed[at:] for rank, listed in calls.items()})
    full = max(calls.values(), key=len)
    counts = Counter(len(listed) for listed in calls.values()).most_common(1)[0][0]
    detail = (
        f"not all ranks join the collective: {ranks_in_words(fewer)} "
        f"call{'s' * (len(fewer) == 1)} {min(map(len, calls.values()))} in step {step}, "
        f"where others call {most}"
    )
    missing = fewer if counts == most or not left else left
    return MatchRow(group, at, full[min(at, most - 1)].name, UNDECIDED, missing, missing, detail)


def _first_difference(calls: Sequence[Sequence[RankCall]]) -> int:
    """The first place where not all call the same."""
    for at, ranks in enumerate(zip(*calls, strict=False)):
        if len(set(ranks)) > 1:
            return at
    return min(map(len, calls))
