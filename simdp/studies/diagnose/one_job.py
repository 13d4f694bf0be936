"""One job: whether traces are of ranks of the same one."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.errors import ScenarioError
from simdp.studies.diagnose.meetings import Matched
from simdp.traces import RankTrace

ENOUGH = 3
"""Collectives of a rank, of which at least one must be another's too."""


def check_traces(traces: Sequence[RankTrace]) -> None:
    """Refuse traces that cannot be of one job.

    Raises
    ------
    ScenarioError
        If there are none, two are of one rank, or they speak of jobs of different sizes.
    """
    if not traces:
        raise ScenarioError(["traces: none given; give those of one job, one per rank."])
    seen = dict[int, RankTrace]()
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in seen:
            raise ScenarioError(
                [
                    f"{trace.path}: is of rank {trace.rank}, as {seen[trace.rank].path} is; give "
                    "the traces of one run, one per rank."
                ]
            )
        seen[trace.rank] = trace
    sized = [trace for trace in traces if trace.world_size is not None]
    for trace in sized[1:]:
        if trace.world_size != sized[0].world_size:
            raise ScenarioError(
                [
                    f"{trace.path}: is of a job of {trace.world_size} ranks, but {sized[0].path} "
                    f"of one of {sized[0].world_size}; give the traces of one job."
                ]
            )


def check_meetings(traces: Sequence[RankTrace], found: Matched) -> None:
    """Refuse ranks that share no collective although all have some.

    Raises
    ------
    ScenarioError
        If there are such.
    """
    met = {place for meeting in found.every for place in meeting.ranks.tolist()}
    alone = [
        place
        for place, trace in enumerate(traces)
        if place not in met and len(trace.collectives) >= ENOUGH
    ]
    if len(traces) > 1 and alone:
        other = traces[0 if alone[0] else 1]
        raise ScenarioError(
            [
                f"{traces[alone[0]].path}: none of its {len(traces[alone[0]].collectives)} "
                f"collectives ends with one of {other.path} or of another rank, so that they are "
                "not of the same steps; give the traces of one job, taken at the same time."
            ]
        )


def check_steps(traces: Sequence[RankTrace], num_common: int) -> None:
    """Refuse ranks that have no step in common.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    if not num_common:
        raise ScenarioError(
            [
                f"{traces[0].path}: no step in it is in the traces of all {len(traces)} ranks; "
                "profile the same steps on every rank, or give the traces of those that have them."
            ]
        )
