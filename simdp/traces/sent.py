"""Sent: the collectives of one rank, from kernels, calls of the host and events of backends."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.traces.calls import BACKENDS, Call, Fields, fields_of
from simdp.traces.collectives import Collectives
from simdp.traces.columns import Table, seconds, step_at
from simdp.traces.gathering import Note, note_name
from simdp.traces.kernels import COMMUNICATION
from simdp.traces.rank_trace import Steps, TraceGroup

SUBSTITUTES = {"all_reduce": ("reduce_scatter",)}
"""What a backend without a device carries out by another collective."""


class Sent(NamedTuple):
    """A collective.

    Attributes
    ----------
    fields : Fields
        What it was.
    kernel : int
        Its kernel, or -1.
    start, end : int
        Of the kernel, else of the call [ns].
    enqueued : int or None
        When the host called it [ns].
    step : int
        In which step, where the call is not in the trace.
    """

    fields: Fields
    kernel: int
    start: int
    end: int
    enqueued: int | None
    step: int = -1


class Finder:
    """Calls by the instants that they hold.

    Parameters
    ----------
    calls : sequence of Call
        Sorted by thread and start.
    groups : dict of str to TraceGroup
        Of the trace.
    """

    def __init__(self, calls: Sequence[Call], groups: dict[str, TraceGroup]) -> None:
        self.used: set[int] = set()
        self._calls = calls
        self._of: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._waiting: dict[str, list[tuple[int, Fields]]] = defaultdict(list)
        for number, call in enumerate(calls):
            starts, numbers = self._of[call.thread]
            starts.append(call.start)
            numbers.append(number)
        for number in sorted(range(len(calls)), key=lambda number: calls[number].start):
            fields = fields_of(calls[number].notes, {}, "", groups)
            self._waiting[fields.name].append((number, fields))

    def at(self, instant: int, thread: int) -> Call | None:
        """Give the call of a thread that holds an instant, which is then used."""
        starts, numbers = self._of.get(thread, ([], []))
        place = bisect_right(starts, instant) - 1
        if place < 0 or self._calls[numbers[place]].end < instant:
            return None
        self.used.add(numbers[place])
        return self._calls[numbers[place]]

    def before(self, note: Note, wanted: Fields) -> tuple[Call, Fields] | None:
        """Give the first unused call of the same size that an event carries out.

        It began before the event ended, and is of the same collective, or of one that the backend
        carries out so.
        """
        found = None
        for name in (wanted.name, *SUBSTITUTES.get(wanted.name, ())):
            for place, (number, fields) in enumerate(self._waiting[name]):
                start = self._calls[number].start
                if start > note.end or (found and start > self._calls[found[2]].start):
                    break
                if _is_same_size(fields, wanted):
                    found = name, place, number
                    break
        if found is None:
            return None
        name, place, number = found
        self.used.add(number)
        return self._calls[number], self._waiting[name].pop(place)[1]

    def unused(self) -> list[Call]:
        """Give the calls that nothing was found for."""
        return [call for number, call in enumerate(self._calls) if number not in self.used]


def _is_same_size(call: Fields, event: Fields) -> bool:
    if call.name != event.name and min(call.num_elements, event.num_elements) < 0:
        return False
    return call.num_elements in (event.num_elements, -1) or event.num_elements < 0


def of_kernels(
    device: Table,
    host: Table,
    launch: Ints,
    said: Mapping[int, dict[str, Any]],
    names: Sequence[str],
    steps: Ints,
    finder: Finder,
    groups: dict[str, TraceGroup],
) -> list[Sent]:
    """One collective for each kernel that communicates.

    Parameters
    ----------
    device, host : Table
        In order.
    launch : ndarray, int64
        Row of the host call that launched each kernel, or -1.
    said : mapping of int to dict
        Fields of the kernels, by their row.
    names : sequence of str
        Of all events.
    steps : ndarray, int64
        Of each kernel.
    finder : Finder
        Of the host's calls.
    groups : dict of str to TraceGroup
        Of the trace.
    """
    found = []
    for row in np.flatnonzero(device["kind"] == COMMUNICATION).tolist():
        at = int(launch[row])
        begun = int(host["start"][at]) if at >= 0 else None
        call = finder.at(begun, int(host["thread"][at])) if begun is not None else None
        notes = call.notes if call else []
        fields = fields_of(notes, said.get(row, {}), names[int(device["name"][row])], groups)
        enqueued = call.start if call else begun
        start, end = int(device["start"][row]), int(device["end"][row])
        found.append(Sent(fields, row, start, end, enqueued, int(steps[row])))
    return found


def of_backends(
    notes: Sequence[Note], kernels: Mapping[tuple[int, int, int], int], finder: Finder,
    groups: dict[str, TraceGroup],
) -> list[Sent]:  # fmt: skip
    """One collective for each event of a backend without a device.

    Parameters
    ----------
    notes : sequence of Note
        Of the trace.
    kernels : mapping of (start, end, thread) to int
        Kernels that stand for them.
    finder : Finder
        Of the host's calls.
    groups : dict of str to TraceGroup
        Of the trace.
    """
    mine = [note for note in notes if note.name.startswith(BACKENDS) and note_name(note)]
    told = [(n, fields_of([n], {}, "", groups)) for n in sorted(mine, key=lambda n: n.start)]
    found = []
    for note, fields in told:
        call = finder.before(note, fields)
        if call and call[1].name != fields.name:
            fields = call[1]._replace(dtype=fields.dtype)
        elif call and fields.out_elements < 0:
            fields = fields._replace(out_elements=call[1].out_elements)
        kernel = kernels.get((note.start, note.end, note.thread), -1)
        enqueued = call[0].start if call else None
        found.append(Sent(fields, kernel, note.start, note.end, enqueued))
    return found


def of_calls(finder: Finder, groups: dict[str, TraceGroup]) -> list[Sent]:
    """Collectives that were called, but left nothing else: those of one rank do."""
    return [
        Sent(fields_of(call.notes, {}, "", groups), -1, call.start, call.end, call.start)
        for call in finder.unused()
    ]


def collectives_of(sent: Sequence[Sent], steps: Steps, origin: int) -> Collectives:
    """Make the columns."""
    sent = sorted(sent, key=lambda one: (one.start, one.end))
    names = tuple(sorted({one.fields.name for one in sent}))

    def column(field: str) -> Ints:
        return np.array([getattr(one.fields, field) for one in sent], dtype=np.int64)

    def text(field: str) -> Any:
        return np.array([getattr(one.fields, field) for one in sent], dtype=np.str_)

    start = seconds(np.array([one.start for one in sent], dtype=np.int64), origin)
    enqueued = np.array(
        [np.nan if one.enqueued is None else (one.enqueued - origin) / 1e9 for one in sent],
        dtype=np.float64,
    )
    step = step_at(steps, enqueued)
    known = np.array([one.step for one in sent], dtype=np.int64)
    return Collectives(
        names=names,
        name=np.array([names.index(one.fields.name) for one in sent], dtype=np.int64),
        kernel=np.array([one.kernel for one in sent], dtype=np.int64),
        num_elements=column("num_elements"),
        out_elements=column("out_elements"),
        dtype=text("dtype"),
        group=text("group"),
        group_size=column("group_size"),
        sequence=column("sequence"),
        peer=column("peer"),
        algorithm=text("algorithm"),
        protocol=text("protocol"),
        start=start,
        end=seconds(np.array([one.end for one in sent], dtype=np.int64), origin),
        step=np.where(known >= 0, known, step),
        enqueued=enqueued,
    )
