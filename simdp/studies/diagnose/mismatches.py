"""Finds collectives that ranks disagree on, in traces and in dumps of NCCL's flight recorder.

Calls are compared as torch's analyser does. ``torchfrtrace`` compares the calls in one place of a
process group, in this order: the type, the sizes, the dtypes, the state. All-to-alls may have
uneven sizes, which only all ranks together decide. The culprit is the rank whose call differs from
most of the others; where no side is in the majority, the rank whose further calls are those of the
others one place on: it left one out.

Dumps of the flight recorder are circular buffers: what one of the ranks has already dropped is not
compared.

References
----------
torch, torch/distributed/flight_recorder/components/types.py: MatchState, Op.match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from simdp.arrays import grouped
from simdp.errors import ScenarioError
from simdp.results.diagnosis import Diagnosis, Finding, MatchRow
from simdp.traces import FlightEntry, FlightRecord, TraceGroup
from simdp.traces.matching import MatchedCollective, MatchedTraces, matchable
from simdp.traces.timeline import RankTimeline

# Comparison ---------------------------------------------------------------------------------------

FULLY_MATCHED = "FULLY_MATCHED"
COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
UNDECIDED = "UNDECIDED"

UNEVEN = ("all_to_all",)  # collectives in which ranks may send different sizes
AHEAD = 4  # calls that are compared to find the rank that left one out


class RankCall(NamedTuple):
    """One call of a rank; unknown fields are empty."""

    name: str  # in torch's terms
    # sizes, out_sizes: elements of each input and output
    sizes: tuple[int, ...] = ()
    out_sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()  # of both
    state: str = ""  # how far it came


def compared(
    calls: Mapping[int, RankCall], is_complete: bool = True
) -> tuple[str, str, tuple[int, ...]]:
    """Compare what the ranks of a group call in one place.

    Parameters
    ----------
    calls : mapping of int to RankCall
        By rank; at least one.
    is_complete : bool
        Whether these are all the ranks of the group.

    Returns
    -------
    (str, str, tuple of int)
        The state of the match, the difference in words, and the rank that differs from most; none
        where no side is in the majority.
    """
    checks: list[tuple[str, Callable[[RankCall], object]]] = [
        (COLLECTIVE_TYPE_MISMATCH, lambda call: call.name),
        (SIZE_OR_SYNTAX_MISMATCH, _sizes),
        (COLLECTIVE_DTYPE_MISMATCH, lambda call: call.dtypes),
        (COLLECTIVE_STATE_MISMATCH, lambda call: call.state),
    ]
    for state, what in checks:
        seen = {rank: what(call) for rank, call in calls.items()}
        if len(set(seen.values())) > 1:
            return state, _differ(seen), _odd(seen)
    some = next(iter(calls.values()))
    if some.name not in UNEVEN:
        return FULLY_MATCHED, "", ()
    if not is_complete or not all(call.out_sizes for call in calls.values()):
        return UNDECIDED, "uneven sizes take all ranks to decide", ()
    sent = sum(sum(call.sizes) for call in calls.values())
    got = sum(sum(call.out_sizes) for call in calls.values())
    if sent != got:
        return SIZE_OR_SYNTAX_MISMATCH, f"{sent} elements are sent, and {got} expected", ()
    return FULLY_MATCHED, "", ()


def _sizes(call: RankCall) -> tuple[object, ...]:
    """Sizes that have to be equal on all ranks."""
    if call.name in UNEVEN:
        return ()
    return (
        call.sizes if call.name != "scatter" else (),
        call.out_sizes if call.name != "gather" else (),
    )


def _odd(seen: Mapping[int, object]) -> tuple[int, ...]:
    counts = Counter(seen.values()).most_common()
    if counts[0][1] * 2 <= len(seen):
        return ()
    return tuple(rank for rank, value in seen.items() if value != counts[0][0])


def _differ(seen: Mapping[int, object]) -> str:
    """``rank 3: 128, the others: 256``."""
    by_value = grouped((value, rank) for rank, value in seen.items())
    ordered = sorted(by_value.items(), key=lambda item: (len(item[1]), item[1]))
    return "; ".join(f"{ranks_in_words(ranks)}: {_plain(value)}" for value, ranks in ordered)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(
            str(list(part)) if isinstance(part, tuple) else str(part) for part in value
        )
    return str(value)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, 2, 3 and 4 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more}"


def rank_without_a_call(calls: Mapping[int, Sequence[RankCall]]) -> tuple[int, ...]:
    """Find the rank whose calls are those of every other rank, one place on.

    Parameters
    ----------
    calls : mapping of int to sequence of RankCall
        Of each rank, from where they first differ.
    """
    plain = {rank: [call._replace(state="") for call in listed] for rank, listed in calls.items()}
    silent = []
    for rank, mine in plain.items():
        others = [listed for other, listed in plain.items() if other != rank]
        length = min([AHEAD, len(mine), *(len(listed) - 1 for listed in others)])
        if length > 0 and all(mine[:length] == other[1 : length + 1] for other in others):
            silent.append(rank)
    return tuple(silent) if len(silent) == 1 else ()


# Dumps of the flight recorder ---------------------------------------------------------------------

STATES = ("scheduled", "started", "completed")  # states of a collective, in order
Calls = dict[int, dict[int, FlightEntry]]  # by rank and sequence number


def diagnose_flight(records: Sequence[FlightRecord]) -> Diagnosis:
    """Find what ranks disagree on, or wait for.

    Parameters
    ----------
    records : sequence of FlightRecord
        One per rank.

    Raises
    ------
    ScenarioError
        If two are of one rank.
    """
    ranked = _by_rank(records)
    rows, matches = list[MatchRow](), 0
    for group in _groups(ranked):
        group_rows = list(_group_rows(ranked, group))
        matches += sum(row.state == FULLY_MATCHED for row in group_rows)
        rows += [row for row in group_rows if row.state != FULLY_MATCHED]
    sizes = [group.size or 0 for record in records for group in record.groups.values()]
    world = max([*sizes, max(ranked) + 1])
    lost = sorted(set(range(world)) - set(ranked))
    remarks = [remark for record in records for remark in record.remarks]
    remarks.append(f"{matches} collectives are FULLY_MATCHED, {len(rows)} are not.")
    if lost:
        remarks.append(f"There is no dump of {ranks_in_words(lost)}: they may be the ones.")
    stuck = _stuck(ranked)
    if stuck and not rows:
        remarks.append(
            f"All ranks called {stuck}, and none completed it: not the order of collectives, but "
            "the network or a kernel holds them up."
        )
    return Diagnosis(
        source="flight_record",
        num_ranks=len(ranked),
        verdict=_verdict(rows),
        world_size=world,
        mismatches=tuple(rows),
        remarks=tuple(remarks),
    )


def _by_rank(records: Sequence[FlightRecord]) -> dict[int, FlightRecord]:
    ranked = dict[int, FlightRecord]()
    for place, record in enumerate(records):
        rank = place if record.rank is None else record.rank
        if rank in ranked:
            raise ScenarioError(
                f"{record.path}: is of rank {rank}, as {ranked[rank].path} is; give the dumps "
                "of one job, one per rank."
            )
        ranked[rank] = record
    return dict(sorted(ranked.items()))


def _groups(ranked: Mapping[int, FlightRecord]) -> list[tuple[str, tuple[int, ...]]]:
    """Names of all process groups, and their members with dumps."""
    groups = dict[tuple[str, tuple[int, ...]], None]()
    for rank, record in ranked.items():
        for name in dict.fromkeys(entry.group for entry in record.entries):
            group: TraceGroup | None = record.groups.get(name)
            ranks = group.ranks if group is not None else None
            members = tuple(r for r in (ranks or ranked) if r in ranked)
            groups[name, members if rank in members else (rank,)] = None
    return sorted(groups)


def _group_rows(
    ranked: Mapping[int, FlightRecord], group: tuple[str, tuple[int, ...]]
) -> Iterator[MatchRow]:
    name, members = group
    calls: Calls = {
        rank: {
            entry.sequence: entry
            for entry in ranked[rank].entries
            if entry.group == name and not entry.is_p2p and entry.sequence >= 0
        }
        for rank in members
    }
    known = [r.groups[name].size for r in ranked.values() if name in r.groups]
    size = max([len(members), *(size_of_record or 0 for size_of_record in known)])
    begins = [min(listed) for listed in calls.values() if listed]
    if not begins or len(members) < 2:
        return
    for sequence in sorted({s for listed in calls.values() for s in listed if s >= max(begins)}):
        yield _row(name, sequence, calls, size)


def _row(group: str, sequence: int, calls: Calls, size: int) -> MatchRow:
    called = {
        rank: {s: _recorded_call(listed[s]) for s in sorted(listed) if s >= sequence}
        for rank, listed in calls.items()
    }
    there = {rank: listed[sequence] for rank, listed in called.items() if sequence in listed}
    missing = tuple(rank for rank in calls if rank not in there)
    state, detail, odd = compared(there, len(there) == size)
    names = sorted({call.name for call in there.values()})
    if state in (COLLECTIVE_TYPE_MISMATCH, SIZE_OR_SYNTAX_MISMATCH) and not odd:
        odd = rank_without_a_call({rank: list(listed.values()) for rank, listed in called.items()})
    if state == COLLECTIVE_STATE_MISMATCH:
        odd = _behind(there)
    if missing and state in (FULLY_MATCHED, COLLECTIVE_STATE_MISMATCH):
        state, odd = UNDECIDED, missing
        detail = f"not all ranks join the collective: {ranks_in_words(missing)} did not call it"
    return MatchRow(group, sequence, "/".join(names), state, missing, odd, detail)


def _behind(there: Mapping[int, RankCall]) -> tuple[int, ...]:
    """Ranks that came least far."""
    far = {
        rank: STATES.index(call.state) if call.state in STATES else 0
        for rank, call in there.items()
    }
    return tuple(rank for rank, state in far.items() if state == min(far.values()))


def _recorded_call(entry: FlightEntry) -> RankCall:
    return RankCall(
        entry.name,
        tuple(map(prod, entry.input_sizes)),
        tuple(map(prod, entry.output_sizes)),
        (*entry.input_dtypes, *entry.output_dtypes),
        entry.state,
    )


def _stuck(ranked: Mapping[int, FlightRecord]) -> str:
    """The first collective that no rank completed, in words; empty if there is none."""
    for name, members in _groups(ranked):
        first = dict[int, FlightEntry]()
        for rank in members:
            for entry in ranked[rank].entries:
                if entry.group == name and not entry.is_p2p and entry.state != "completed":
                    first[rank] = entry
                    break
        if first and len(first) == len(members):
            entry = next(iter(first.values()))
            return f"{entry.name} (group {name}, collective_seq_id {entry.sequence})"
    return ""


def _verdict(rows: Sequence[MatchRow]) -> tuple[Finding, ...]:
    """The first collective of each group that ranks disagree on: what follows is its doing."""
    first = dict[str, MatchRow]()
    for row in rows:
        if row.state != UNDECIDED or row.missing_ranks:
            first.setdefault(row.group, row)
    worst = sorted(first.values(), key=lambda row: row.state == COLLECTIVE_STATE_MISMATCH)
    return tuple(disagreement(row) for row in worst)


def disagreement(row: MatchRow) -> Finding:
    """The finding for a collective that ranks disagree on."""
    culprits = f"; {ranks_in_words(row.culprit_ranks)} differ{'s' * (len(row.culprit_ranks) == 1)}"
    return Finding(
        "desynchronised",
        1.0,
        f"{row.name}, number {row.sequence} of group {row.group or 'unknown'}: {row.state}: "
        f"{row.detail}{culprits if row.culprit_ranks and not row.missing_ranks else ''}.",
        row.culprit_ranks,
    )


# Traces -------------------------------------------------------------------------------------------


def mismatches(lines: Sequence[RankTimeline], matches: MatchedTraces) -> list[MatchRow]:
    """Collectives that ranks disagree on; not of groups that had to be matched by their ends.

    Parameters
    ----------
    lines : sequence of RankTimeline
        Of the ranks.
    matches : MatchedTraces
        Their collectives.
    """
    rows = list(_lacking(lines, matches))
    rows += [
        row
        for collective in matches.collectives
        if not _by_ends(collective.group, matches) and (row := _differing(lines, collective))
    ]
    return rows


def _by_ends(group: str, matches: MatchedTraces) -> bool:
    """Whether a group's collectives were matched by their ends."""
    return any(key == group or key.startswith(f"{group} of ") for key in matches.by_ends)


def _traced_call(line: RankTimeline, place: int) -> RankCall:
    calls = line.trace.collectives
    sizes = (int(calls.num_elements[place]),), (int(calls.out_elements[place]),)
    known = tuple(size if size[0] >= 0 else () for size in sizes)
    return RankCall(calls.names[calls.name[place]], known[0], known[1], (str(calls.dtype[place]),))


def _differing(lines: Sequence[RankTimeline], collective: MatchedCollective) -> MatchRow | None:
    """A row if the calls of a collective's ranks differ, other than in unknown sizes."""
    ranks = [lines[place].rank for place in collective.ranks.tolist()]
    called = [
        _traced_call(lines[i], place)
        for i, place in zip(collective.ranks.tolist(), collective.places.tolist(), strict=True)
    ]
    if not all(call.sizes for call in called):
        called = [call._replace(sizes=(), out_sizes=()) for call in called]
    if not all(call.out_sizes for call in called):
        called = [call._replace(out_sizes=()) for call in called]
    state, differs, odd = compared(dict(zip(ranks, called, strict=True)), collective.is_complete)
    if state in (FULLY_MATCHED, UNDECIDED):
        return None
    name = Counter(call.name for call in called).most_common(1)[0][0]
    return MatchRow(collective.group, collective.number, name, state, (), odd, differs)


def _lacking(lines: Sequence[RankTimeline], matches: MatchedTraces) -> Iterator[MatchRow]:
    """Rows for steps in which a rank calls fewer collectives of a group than others do."""
    if len(lines) < 2 or any(not len(line.trace.steps) for line in lines):
        return
    groups = sorted({str(g) for line in lines for g in line.trace.collectives.group.tolist()})
    for group in groups:
        if _by_ends(group, matches):
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
        columns, chosen = line.trace.collectives, matchable(line)
        place = int(np.flatnonzero(line.number == step)[0])
        mine = chosen[(columns.group[chosen] == group) & (columns.step[chosen] == place)]
        calls[line.rank] = [_traced_call(line, call_place) for call_place in mine.tolist()]
    most = max(len(listed) for listed in calls.values())
    fewer = tuple(rank for rank, listed in calls.items() if len(listed) < most)
    if not fewer:
        return None
    at = _first_difference(list(calls.values()))
    left = rank_without_a_call({rank: listed[at:] for rank, listed in calls.items()})
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
