"""Joins diagnoses of one job: of its traces, its dumps, and its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simdp.results.diagnosis import Diagnosis, Finding


def joined(parts: Sequence[Diagnosis]) -> Diagnosis:
    """Join diagnoses; the first has the times and the rows.

    Ranks that disagree come first, then causes that a text states, then those of the first part.
    """
    first, *others = parts
    if not others:
        return first
    return replace(
        first,
        verdict=tuple(_verdict(parts)),
        num_ranks=max(part.num_ranks for part in parts),
        world_size=max(part.world_size or 0 for part in parts) or None,
        buckets=next((part.buckets for part in parts if part.buckets), ()),
        bucket_rule=next((part.bucket_rule for part in parts if part.bucket_rule), None),
        mismatches=tuple(row for part in parts for row in part.mismatches),
        sources=tuple(row for part in parts for row in part.sources),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )


def _verdict(parts: Sequence[Diagnosis]) -> list[Finding]:
    """One finding per cause: recordings show it, and texts add what they expect and advise."""
    best = dict[str, Finding]()
    for part in parts:
        for one in part.verdict:
            known = best.setdefault(one.cause, one)
            if known is not one and not known.confidence:
                best[one.cause] = replace(
                    known,
                    expected=one.expected,
                    obtained=one.obtained,
                    remedy=one.remedy,
                    ranks=known.ranks or one.ranks,
                )
    order = {cause: place for place, cause in enumerate(best)}
    return sorted(best.values(), key=lambda one: (_place(one), order[one.cause]))


def _place(one: Finding) -> int:
    if one.cause == "desynchronised" and not one.confidence:
        return 0
    if one.confidence == "certain":
        return 1
    if not one.confidence:
        return 2
    return 3 if one.confidence == "likely" else 4
