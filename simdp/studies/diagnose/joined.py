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
        for finding in part.verdict:
            known = best.setdefault(finding.cause, finding)
            if known is not finding and not known.confidence:
                best[finding.cause] = replace(
                    known,
                    expected=finding.expected,
                    obtained=finding.obtained,
                    remedy=finding.remedy,
                    ranks=known.ranks or finding.ranks,
                )
    order = {cause: place for place, cause in enumerate(best)}
    return sorted(best.values(), key=lambda finding: (_place(finding), order[finding.cause]))


def _place(finding: Finding) -> int:
    if finding.cause == "desynchronised" and not finding.confidence:
        return 0
    if finding.confidence == "certain":
        return 1
    if not finding.confidence:
        return 2
    return 3 if finding.confidence == "likely" else 4
