"""Rows: steps, ranks, collectives and waits of a job, as a diagnosis lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.collectives import FAMILIES
from simdp.results.collective import bus_bandwidth_factor
from simdp.results.diagnosis import CollectiveRow, LateRow, NodeRow, RankRow, StepRow, WaitRow
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import HOST_LATE
from simdp.studies.diagnose.critical import CriticalSteps
from simdp.traces import COMMUNICATION, COMPUTE, SYNC, RankTrace
from simdp.traces.intervals import Instants
from simdp.traces.timeline import RankTimeline

# Steps --------------------------------------------------------------------------------------------


def step_rows(line: RankTimeline) -> Iterator[StepRow]:
    """Figures of each step of a rank; none if the whole trace is one."""
    if not line.marks.mark:
        return
    order = np.argsort(line.marks.kernel, kind="stable")
    bounds = np.searchsorted(line.marks.kernel[order], np.arange(line.num_steps + 1))
    for place in range(line.num_steps):
        lengths = lengths_of(line.trace, order[bounds[place] : bounds[place + 1]])
        yield StepRow(
            rank=line.rank,
            step=int(line.number[place]),
            step_time_s=float(line.time[place]),
            counted=bool(line.used[place]),
            exposed_comm_s=lengths.comm_s - lengths.hidden_comm_s,
            **lengths._asdict(),
        )


class ActivityLengths(NamedTuple):
    """Span, and length of each kind of activity of a device, as `StepRow` names them [s]."""

    span_s: float
    busy_s: float
    compute_s: float
    comm_s: float
    hidden_comm_s: float
    copy_s: float


def lengths_of(trace: RankTrace, chosen: Ints | None = None) -> ActivityLengths:
    """Measure the activities of a device.

    Parameters
    ----------
    trace : RankTrace
        The rank's.
    chosen : ndarray, int64, optional
        Indices of its kernels; all of them by default.
    """
    kernels = trace.kernels
    places = np.arange(len(kernels)) if chosen is None else chosen
    kind, start, end = (column[places] for column in (kernels.kind, kernels.start, kernels.end))
    works, sends = kind == COMPUTE, kind == COMMUNICATION
    others = ~works & ~sends & (kind != SYNC)
    compute, comm, copies = (Instants.of(start[at], end[at]) for at in (works, sends, others))
    busy = compute.plus(comm).plus(copies)
    return ActivityLengths(
        float(busy.end[-1] - busy.start[0]) if len(busy.start) else 0.0,
        busy.length(),
        compute.length(),
        comm.length(),
        comm.both(compute).length(),
        copies.without(compute).without(comm).length(),
    )


def mean(values: list[float]) -> float:
    """Mean of values; 0 of none."""
    return float(np.mean(values)) if values else 0.0


# Ranks and collectives ----------------------------------------------------------------------------


def all_step_rows(case: Case) -> list[StepRow]:
    """A row per rank and step."""
    return [row for line in case.lines for row in step_rows(line)]


def rank_rows(case: Case, critical: CriticalSteps, steps: Sequence[StepRow]) -> Iterator[RankRow]:
    """A row per rank: means of its steps that count, or figures of its whole trace."""
    wait, fetching = (case.charge(kind).mean(axis=0) for kind in ("wait", "input"))
    launch = sum(case.charge(kind).mean(axis=0) for kind in HOST_LATE)
    late = critical.late.late.mean(axis=0)
    for place, line in enumerate(case.lines):
        whole = lengths_of(line.trace)
        mine = [row for row in steps if row.rank == line.rank and row.counted]
        time, usual = None, whole
        if mine:
            means = (mean([getattr(row, name) for row in mine]) for name in whole._fields[1:])
            time = mean([row.step_time_s for row in mine])
            usual = ActivityLengths(time, *means)
        yield RankRow(
            rank=line.trace.rank,
            step_time_s=time,
            compute_s=usual.compute_s,
            exposed_comm_s=usual.comm_s - usual.hidden_comm_s,
            hidden_comm_s=usual.hidden_comm_s,
            copy_s=usual.copy_s,
            idle_s=max(usual.span_s - usual.busy_s, 0.0),
            wait_s=float(wait[place]),
            late_s=float(late[place]),
            input_s=float(fetching[place]),
            launch_s=float(launch[place]),
            clock_s=_clock(case, place),
            trace=whole._asdict(),
        )


def _clock(case: Case, place: int) -> float:
    """Difference of clocks by the ends of collectives, less that in the files [s]."""
    origins = case.lines[0].trace.origin_ns - case.lines[place].trace.origin_ns
    return float(case.found.offset[place]) - origins * 1e-9


def collective_rows(case: Case) -> list[CollectiveRow]:
    """A row per kind, size and group, by the time that they take."""
    seen = dict[tuple[object, ...], list[tuple[int, int]]]()
    for rank, line in enumerate(case.lines):
        columns = line.trace.collectives
        for place, call in enumerate(case.calls[rank]):
            at = call.place
            key = (
                columns.names[columns.name[at]],
                int(columns.num_elements[at]),
                str(columns.dtype[at]),
                str(columns.group[at]),
                int(columns.group_size[at]),
                str(columns.algorithm[at]),
                str(columns.protocol[at]),
            )
            seen.setdefault(key, []).append((rank, place))
    rows = [_collective(case, key, where) for key, where in seen.items()]
    return sorted(rows, key=lambda row: -row.count * (row.transfer_s + row.wait_s))


def _collective(
    case: Case, key: tuple[object, ...], where: Sequence[tuple[int, int]]
) -> CollectiveRow:
    name, elements, dtype, group, size, algorithm, protocol = key
    calls = [case.calls[rank][place] for rank, place in where]
    rank, place = where[0]
    known = case.sizes[rank].get(place)
    transfer = mean([call.end - call.middle for call in calls])
    algbw = known.nbytes / transfer if known is not None and transfer > 0 else None
    factor = None
    if known is not None and str(name) in FAMILIES:
        factor = bus_bandwidth_factor(str(name), len(known.ranks))
    by_rank = np.bincount([rank for rank, _ in where])
    assert isinstance(elements, int)
    assert isinstance(size, int)
    return CollectiveRow(
        name=str(name),
        num_elements=elements if elements >= 0 else None,
        dtype=str(dtype),
        nbytes=None if known is None else known.nbytes,
        group=str(group),
        group_size=size if size > 0 else None,
        algorithm=str(algorithm),
        protocol=str(protocol),
        count=int(by_rank.max()),
        transfer_s=transfer,
        wait_s=mean([call.middle - call.start for call in calls]),
        algbw=algbw,
        busbw=None if algbw is None or factor is None else algbw * factor,
        expected_s=case.expected[known].usual if known in case.expected else None,
    )


def late_rows(case: Case, critical: CriticalSteps) -> Iterator[LateRow]:
    """Time lost in each step, and the last rank; none for jobs of one rank."""
    if len(case.lines) < 2 or not case.has_steps:
        return
    late = critical.late
    last = late.late.argmax(axis=1)
    for row, step in enumerate(case.numbers.tolist()):
        yield LateRow(step, case.lines[int(last[row])].rank, float(late.cost[row]))


def node_rows(case: Case, ranks: Sequence[RankRow]) -> Iterator[NodeRow]:
    """Means over the ranks of each node, where these are known."""
    local_size = case.reference.local_size
    if local_size is None:
        return
    node_of = [line.rank // local_size for line in case.lines]
    if len(set(node_of)) > 1:
        for node in sorted(set(node_of)):
            mine = [row for row, of in zip(ranks, node_of, strict=True) if of == node]
            yield NodeRow(node, mean([r.wait_s for r in mine]), mean([r.late_s for r in mine]))


def wait_rows(case: Case) -> Iterator[WaitRow]:
    """Exposed waiting time of each rank for each other one."""
    mean_wait = case.blamed[:, :, :-1].mean(axis=0)
    order = np.argsort(-mean_wait, axis=None, kind="stable")
    for flat in order.tolist():
        rank, late = divmod(flat, mean_wait.shape[1])
        if mean_wait[rank, late] > 0:
            ours, theirs = case.lines[rank].rank, case.lines[late].rank
            yield WaitRow(ours, theirs, float(mean_wait[rank, late]))
