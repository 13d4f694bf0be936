"""Collects all facts about a job before the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.errors import ScenarioError
from simdp.studies.diagnose.charges import (
    KINDS,
    CollectiveCharge,
    Like,
    StepCharges,
    calls_of,
    charges,
    shortest_of_like,
    transfer_times,
    untraced_waits,
)
from simdp.studies.diagnose.expected import CollectiveSize, ExpectedTime, ReferenceMachines
from simdp.traces import RankTrace
from simdp.traces.matching import MatchedTraces, check_shared, match
from simdp.traces.timeline import RankTimeline, timeline

SLOW = 1.5
"""Slow transfers take so many times the expected time or more; models of machines err by less."""

QUICK = 0.25  # quantile of like transfers that others are compared with
LEAST_SLOW = 50e-6  # least time of a slow transfer: launches and protocols differ by so much [s]


@dataclass(frozen=True, eq=False)
class Case:
    """Traces of a job: timelines, matched collectives, and charges of each step."""

    lines: list[RankTimeline]  # one per rank
    found: MatchedTraces  # their collectives and clocks
    calls: list[list[CollectiveCharge]]  # waiting and transfer of each rank's collectives
    charged: list[StepCharges]  # time of each rank's steps by cause
    numbers: Ints  # steps that every rank has and that count; `(num_steps,)`
    at: Ints  # their places in each rank's timeline; `(num_steps, num_ranks)`
    reference: ReferenceMachines  # machines that collectives are compared with
    expected: dict[CollectiveSize, ExpectedTime]  # on these machines [s]
    # by rank and place among ``calls``, where the size is known
    sizes: list[dict[int, CollectiveSize]]
    excess: Floats  # time of slow transfers beyond the expected [s]; `(num_steps, num_ranks)`
    # the quickest of like transfers, by name, bytes and number of ranks [s]
    least_seen: dict[Like, float]

    def expected_times(self, sizes: Iterable[CollectiveSize]) -> dict[CollectiveSize, float]:
        """Expected times of transfers: of the machine, or the quickest of like groups [s]."""
        times = {size: expected_time(size, self.expected, self.least_seen) for size in sizes}
        return {size: value for size, value in times.items() if np.isfinite(value)}

    @property
    def has_steps(self) -> bool:
        """Whether there are steps, and not the whole traces in their place."""
        return bool(self.lines[0].marks.mark)

    @property
    def window(self) -> Floats:
        """Length of each step on each rank's device, shape `(num_steps, num_ranks)` [s]."""
        return self._by_step([charges.window for charges in self.charged])

    def charge(self, kind: str) -> Floats:
        """Time that is charged to one of `KINDS`, shape `(num_steps, num_ranks)` [s]."""
        assert kind in KINDS
        return self._by_step([charges.of[kind] for charges in self.charged])

    @property
    def blamed(self) -> Floats:
        """Waiting time by rank and cause, shape `(num_steps, num_ranks, num_ranks + 1)` [s]."""
        return self._by_step([charges.blamed for charges in self.charged])

    def _by_step(self, columns: Sequence[Floats]) -> Floats:
        return np.stack([column[self.at[:, i]] for i, column in enumerate(columns)], axis=1)


def case_of(traces: Sequence[RankTrace], machine: str | None) -> Case:
    """Match the traces of a job, and charge its steps.

    Parameters
    ----------
    traces : sequence of RankTrace
        Of ranks of one job.
    machine : str or None
        Their machine, if that is known.

    Raises
    ------
    ScenarioError
        If there is no such machine, or ranks share no step, or no collective.
    """
    lines = [timeline(trace, place) for place, trace in enumerate(traces)]
    matches = match(lines)
    check_shared(traces, matches)
    least = shortest_of_like(lines)
    transfers = transfer_times(matches, least)
    calls = [calls_of(lines, place, matches, transfers, least) for place in range(len(lines))]
    numbers = _common(lines)
    check_steps(traces, len(numbers))
    at = np.array(
        [[int(np.flatnonzero(line.number == n)[0]) for line in lines] for n in numbers.tolist()]
    ).reshape(len(numbers), len(lines))
    world_size = _world_size(lines)
    sizes = [_sizes(line, mine, world_size) for line, mine in zip(lines, calls, strict=True)]
    reference = _reference(traces, machine, world_size)
    expected = reference.seconds(size for rank in sizes for size in rank.values())
    if reference.is_given:
        calls = [
            untraced_waits(rank_calls, known, expected, matches.every)
            for rank_calls, known in zip(calls, sizes, strict=True)
        ]
    charged = [
        charges(line, float(matches.offset[place]), calls[place], len(lines))
        for place, line in enumerate(lines)
    ]
    least_seen = _least_seen(calls, sizes)
    excess = np.zeros(at.shape)
    for rank, line in enumerate(lines):
        until = (line.end - matches.offset[rank])[at[:, rank]]
        begin = (line.begin - matches.offset[rank])[at[:, rank]]
        if line.trace.on_host and not reference.is_given:
            continue  # threads of a busy host are no links
        for place, size in sizes[rank].items():
            call = calls[rank][place]
            over = _excess(call, expected_time(size, expected, least_seen))
            excess[(begin < call.end) & (call.end <= until), rank] += over
    shared = lines, matches, calls, charged, numbers, at
    return Case(*shared, reference, expected, sizes, excess, least_seen)


def _reference(
    traces: Sequence[RankTrace], machine: str | None, world_size: int
) -> ReferenceMachines:
    """Machines that transfers are compared with."""
    name = next((trace.device_name for trace in traces if trace.device_name), None)
    traced = next((trace.machine for trace in traces if trace.machine), None)
    return ReferenceMachines(machine, name, world_size, traced)


def expected_time(
    size: CollectiveSize,
    expected: Mapping[CollectiveSize, ExpectedTime],
    least_seen: Mapping[Like, float],
) -> float:
    """Expected time of a transfer: of the machine, or of most groups of as many ranks [s].

    Infinite without both.
    """
    longest = expected[size].longest if size in expected else np.inf
    return min(longest, least_seen.get(_like(size), np.inf))


def _excess(call: CollectiveCharge, expected: float) -> float:
    """Time of a slow transfer beyond the expected [s]; 0 of others."""
    lasted = call.end - call.middle
    return lasted - expected if lasted > max(SLOW * expected, LEAST_SLOW) else 0.0


def _least_seen(
    calls: Sequence[Sequence[CollectiveCharge]], sizes: Sequence[dict[int, CollectiveSize]]
) -> dict[Like, float]:
    """Time of the quickest quarter of like transfers, in the quickest group of one size [s]."""
    lasted = dict[CollectiveSize, list[float]]()
    for listed, known in zip(calls, sizes, strict=True):
        for place, size in known.items():
            lasted.setdefault(size, []).append(listed[place].end - listed[place].middle)
    least = dict[Like, float]()
    for size, times in lasted.items():
        quick = float(np.quantile(times, QUICK))
        least[_like(size)] = min(quick, least.get(_like(size), np.inf))
    return least


def _like(size: CollectiveSize) -> Like:
    return size.name, size.nbytes, len(size.ranks)


def _sizes(
    line: RankTimeline, calls: Sequence[CollectiveCharge], world_size: int
) -> dict[int, CollectiveSize]:
    """Sizes of a rank's collectives that the trace has, by their places in ``calls``."""
    columns, size_of = line.trace.collectives, dict[int, CollectiveSize]()
    for place, call in enumerate(calls):
        at = call.place
        size = int(columns.group_size[at])
        size = world_size if size < 0 else size
        name = columns.names[columns.name[at]]
        whole = columns.nbytes(at, size)
        group = line.trace.groups.get(str(columns.group[at]))
        ranks = group.ranks if group is not None else None
        if whole is not None and size > 1:
            size_of[place] = CollectiveSize(name, whole, ranks or tuple(range(size)))
    return size_of


def _common(lines: Sequence[RankTimeline]) -> Ints:
    """Numbers of the steps that every rank has and that count."""
    numbers = lines[0].number
    for line in lines[1:]:
        numbers = np.intersect1d(numbers, line.number)
    used = [
        n
        for n in numbers.tolist()
        if all(line.used[np.flatnonzero(line.number == n)[0]] for line in lines)
    ]
    return np.array(used or numbers.tolist(), dtype=np.int64)


def _world_size(lines: Sequence[RankTimeline]) -> int:
    """Ranks of the job; at least as many as in any trace."""
    written = [line.trace.world_size or 0 for line in lines]
    sizes = [int(line.trace.collectives.group_size.max(initial=0)) for line in lines]
    return max(*written, *sizes, *(line.rank + 1 for line in lines))


def check_steps(traces: Sequence[RankTrace], num_common: int) -> None:
    """Refuse ranks that have no step in common.

    Raises
    ------
    ScenarioError
        If there is none.
    """
    if not num_common:
        raise ScenarioError(
            f"{traces[0].path}: no step in it is in the traces of all {len(traces)} ranks; "
            "profile the same steps on every rank, or give the traces of those that have them."
        )
