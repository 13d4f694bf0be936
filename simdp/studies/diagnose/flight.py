"""Finds the cause of a hang in dumps of NCCL's flight recorder.

Collectives are matched by process group and sequence number. The buffers are circular: what one of
the ranks has already forgotten is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from simdp.errors import ScenarioError
from simdp.results.diagnosis import Diagnosis, Finding, MatchRow
from simdp.studies.diagnose.agreement import (
    COLLECTIVE_STATE_MISMATCH,
    COLLECTIVE_TYPE_MISMATCH,
    FULLY_MATCHED,
    SIZE_OR_SYNTAX_MISMATCH,
    UNDECIDED,
    RankCall,
    compared,
    ranks_in_words,
    who_left_one_out,
)
from simdp.traces import FlightEntry, FlightRecord, TraceGroup

STATES = ("scheduled", "started", "completed")
"""How far a collective comes, in order."""

Calls = dict[int, dict[int, FlightEntry]]
"""By rank and sequence number."""


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
        found = list(_group_rows(ranked, group))
        matches += sum(row.state == FULLY_MATCHED for row in found)
        rows += [row for row in found if row.state != FULLY_MATCHED]
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
        step_time_s=None,
        compute_s=None,
        exposed_comm_s=None,
        hidden_comm_s=None,
        idle_s=None,
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
                [
                    f"{record.path}: is of rank {rank}, as {ranked[rank].path} is; give the dumps "
                    "of one job, one per rank."
                ]
            )
        ranked[rank] = record
    return dict(sorted(ranked.items()))


def _groups(ranked: Mapping[int, FlightRecord]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and members of all process groups; members as far as there are dumps."""
    found = dict[tuple[str, tuple[int, ...]], None]()
    for rank, record in ranked.items():
        for name in dict.fromkeys(entry.group for entry in record.entries):
            group: TraceGroup | None = record.groups.get(name)
            ranks = group.ranks if group is not None else None
            members = tuple(r for r in (ranks or ranked) if r in ranked)
            found[name, members if rank in members else (rank,)] = None
    return sorted(found)


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
    size = max([len(members), *(one or 0 for one in known)])
    begins = [min(listed) for listed in calls.values() if listed]
    if not begins or len(members) < 2:
        return
    for sequence in sorted({s for listed in calls.values() for s in listed if s >= max(begins)}):
        yield _row(name, sequence, calls, size)


def _row(group: str, sequence: int, calls: Calls, size: int) -> MatchRow:
    called = {
        rank: {s: _called(listed[s]) for s in sorted(listed) if s >= sequence}
        for rank, listed in calls.items()
    }
    there = {rank: listed[sequence] for rank, listed in called.items() if sequence in listed}
    missing = tuple(rank for rank in calls if rank not in there)
    state, detail, odd = compared(there, len(there) == size)
    names = sorted({call.name for call in there.values()})
    if state in (COLLECTIVE_TYPE_MISMATCH, SIZE_OR_SYNTAX_MISMATCH) and not odd:
        odd = who_left_one_out({rank: list(listed.values()) for rank, listed in called.items()})
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


def _called(entry: FlightEntry) -> RankCall:
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
    who = f"; {ranks_in_words(row.culprit_ranks)} differ{'s' * (len(row.culprit_ranks) == 1)}"
    return Finding(
        "desynchronised",
        1.0,
        f"{row.name}, number {row.sequence} of group {row.group or 'unknown'}: {row.state}: "
        f"{row.detail}{who if row.culprit_ranks and not row.missing_ranks else ''}.",
        row.culprit_ranks,
    )
