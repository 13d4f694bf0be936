"""Columns: host events and kernels of one rank, in order and in seconds, from tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.traces.host_events import OP, RUNTIME, HostEvents
from simdp.traces.intervals import union
from simdp.traces.kernels import COMMUNICATION, COMPUTE, SYNC, Kernels
from simdp.traces.nesting import Threads
from simdp.traces.rank_trace import Steps

STEP = "ProfilerStep#"
"""How the annotation of a step begins; its number follows."""

Table = dict[str, Ints]
"""Columns of whole numbers by their names."""


def in_order(table: Table) -> Table:
    """Sort events by their start, longer ones first."""
    order = np.lexsort((-table["end"], table["start"]))
    return {name: column[order] for name, column in table.items()}


def origin_of(*tables: Table) -> int:
    """The earliest start [ns]; 0 without events."""
    starts = [int(table["start"].min()) for table in tables if len(table["start"])]
    return min(starts, default=0)


def seconds(ns: Ints, origin: int) -> Floats:
    """Turn instants into seconds after the origin."""
    found: Floats = (ns - origin) / 1e9
    return found


def named(codes: Ints, names: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Keep only those names that occur."""
    kept, at = np.unique(codes, return_inverse=True)
    return tuple(names[code] for code in kept.tolist()), at.astype(np.int64)


def steps_of(host: Table, names: Sequence[str], origin: int) -> Steps:
    """Find the steps among host events in order; of several with one number, the first."""
    numbers = {
        code: int(name.removeprefix(STEP))
        for code, name in enumerate(names)
        if name.startswith(STEP) and name.removeprefix(STEP).isdecimal() and len(name) < 30
    }
    found: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(host["name"], list(numbers))).tolist():
        found.setdefault(numbers[int(host["name"][row])], row)
    rows = np.array(sorted(found.values()), dtype=np.int64)
    return Steps(
        np.array([numbers[int(code)] for code in host["name"][rows]], dtype=np.int64),
        seconds(host["start"][rows], origin),
        seconds(host["end"][rows], origin),
    )


def step_at(steps: Steps, at: Floats) -> Ints:
    """Index of the step that holds each instant; -1 for none, and for nan."""
    if not len(steps):
        return np.full(len(at), -1, dtype=np.int64)
    found = np.searchsorted(steps.start, np.nan_to_num(at, nan=-1.0), side="right") - 1
    held = (found >= 0) & (at <= steps.end[np.maximum(found, 0)])
    return np.where(held, found, -1).astype(np.int64)


def host_of(host: Table, names: Sequence[str], steps: Steps, origin: int) -> HostEvents:
    """Make the columns of host events in order."""
    start = seconds(host["start"], origin)
    kept, name = named(host["name"], names)
    end = seconds(host["end"], origin)
    return HostEvents(kept, name, host["kind"], start, end, host["thread"], step_at(steps, start))


def launches_of(device: Table, host: Table) -> Ints:
    """Row of the host call that launched each kernel, by their correlation; -1 for none."""
    calls = np.flatnonzero((host["kind"] == RUNTIME) & (host["correlation"] > 0))
    calls = calls[np.argsort(host["correlation"][calls], kind="stable")]
    if not len(calls):
        return np.full(len(device["start"]), -1, dtype=np.int64)
    known = host["correlation"][calls]
    at = np.minimum(np.searchsorted(known, device["correlation"]), len(calls) - 1)
    return np.where(known[at] == device["correlation"], calls[at], -1)


def kernels_of(
    device: Table, host: Table, names: Sequence[str], steps: Steps, origin: int
) -> Kernels:
    """Make the columns of device events in order.

    Where no host call is in the trace at all, as in our own, the events say their step.
    """
    launch = launches_of(device, host)
    launched, launch_end = np.full((2, len(launch)), np.nan)
    known = launch >= 0
    launched[known] = seconds(host["start"][launch[known]], origin)
    launch_end[known] = seconds(host["end"][launch[known]], origin)
    ops = np.flatnonzero(host["kind"] == OP)
    op = np.full(len(launch), -1, dtype=np.int64)
    threads = Threads(host["start"][ops], host["end"][ops], host["thread"][ops])
    held = threads.holding(host["start"][launch[known]], host["thread"][launch[known]])
    if len(ops):
        op[known] = np.where(held >= 0, ops[held], -1)
    step = step_at(steps, launched)
    if not known.any() and len(steps):
        at = np.minimum(np.searchsorted(steps.number, device["said_step"]), len(steps) - 1)
        step = np.where(steps.number[at] == device["said_step"], at, -1).astype(np.int64)
    kept, name = named(device["name"], names)
    return Kernels(
        names=kept,
        name=name,
        kind=device["kind"],
        start=seconds(device["start"], origin),
        end=seconds(device["end"], origin),
        stream=device["stream"],
        device=device["device"],
        launched=launched,
        launch_end=launch_end,
        step=step,
        op=op,
        nbytes=np.where(device["nbytes"] >= 0, device["nbytes"].astype(float), np.nan),
    )


def is_without_device(device: Table) -> bool:
    """Tell whether no device did anything."""
    return not (device["kind"] != SYNC).any()


def standing_in(host: Table, calls: Sequence[tuple[int, int, int]], sent: Sequence[int]) -> Table:
    """Take outermost operators for kernels, without the calls of collectives within them.

    Parameters
    ----------
    host : Table
        In order.
    calls : sequence of (start, end, thread)
        When the host called a collective [ns].
    sent : sequence of int
        Rows of the backend's own events, which are communication.

    Returns
    -------
    Table
        As of a device, with one more column: ``op``, the row of the host event.
    """
    ops = np.flatnonzero(host["kind"] == OP)
    threads = Threads(host["start"][ops], host["end"][ops], host["thread"][ops])
    whole = ops[threads.is_outermost]
    inner = _inner(host, whole, calls)
    pieces = [piece for row in whole.tolist() for piece in _left(host, row, inner.get(row, []))]
    kind = np.repeat([COMPUTE, COMMUNICATION], [len(pieces), len(sent)])
    pieces += [(row, int(host["start"][row]), int(host["end"][row])) for row in sent]
    row, start, end = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    nothing = np.full(len(row), -1, dtype=np.int64)
    table = {"name": host["name"][row], "kind": kind, "start": start, "end": end}
    table |= {"stream": host["thread"][row], "op": row, "pid": host["pid"][row]}
    table |= {"device": nothing, "correlation": nothing, "nbytes": nothing, "said_step": nothing}
    return in_order(table)


def _inner(
    host: Table, whole: Ints, calls: Sequence[tuple[int, int, int]]
) -> dict[int, list[tuple[int, int]]]:
    """Calls that lie in operators, by the operator's row."""
    found: dict[int, list[tuple[int, int]]] = {}
    threads = {call[2] for call in calls}
    rows = {thread: whole[host["thread"][whole] == thread] for thread in threads}
    spans = {thread: (host["start"][mine], host["end"][mine]) for thread, mine in rows.items()}
    for start, end, thread in calls:
        begins, ends = spans[thread]  # both rise, since outermost operators follow each other
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(begins, end, "left")
        for row in rows[thread][first:last].tolist():
            found.setdefault(row, []).append((start, end))
    return found


def _left(host: Table, row: int, calls: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """What of an operator is not spent in calls."""
    start, end = int(host["start"][row]), int(host["end"][row])
    if not calls:
        return [(row, start, end)]
    begins, ends = np.array(calls).T
    begin, until = union(begins, ends)
    edges = [start, *np.ravel([begin, until], order="F").tolist(), end]
    return [(row, a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def standing_kernels(table: Table, names: Sequence[str], steps: Steps, origin: int) -> Kernels:
    """Make the columns of what stands in for kernels: each is launched as it starts."""
    start = seconds(table["start"], origin)
    kept, name = named(table["name"], names)
    return Kernels(
        names=kept,
        name=name,
        kind=table["kind"],
        start=start,
        end=seconds(table["end"], origin),
        stream=table["stream"],
        device=table["device"],
        launched=start,
        launch_end=start,
        step=step_at(steps, start),
        op=table["op"],
        nbytes=np.full(len(start), np.nan),
    )
