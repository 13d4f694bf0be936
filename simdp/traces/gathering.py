"""Gathering: the events of a file, sorted into tables by what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from simdp.traces.host_events import ANNOTATION, OP, RUNTIME
from simdp.traces.kernels import COMMUNICATION, COMPUTE, COPY, SET, SYNC
from simdp.traces.rows import FAR, Names, Places, Rows, nanoseconds, whole
from simdp.traces.words import collective_name, is_communication

HOST = {
    "cpu_op": OP,
    "operator": OP,
    "cpu_instant_event": OP,
    "user_annotation": ANNOTATION,
    "cuda_runtime": RUNTIME,
    "runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
}
"""Kinds of host events by their category, in small letters; those of torch 1.10 were others."""

DEVICE = {
    "kernel": COMPUTE,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": SET,
    "memset": SET,
    "cuda_sync": SYNC,
    "xpu_sync": SYNC,
}
"""Kinds of device events by their category."""

KINDS = {
    written: kind
    for category, kind in [*HOST.items(), *((name, -1 - kind) for name, kind in DEVICE.items())]
    for written in (category, category.capitalize())
}
"""Both; of the device below 0. Small letters are today's, the others torch 1.10's."""

OTHERS = ("gpu_user_annotation", "python_function", "trace", "overhead", "ac2g", "fwdbwd")
"""Categories of Kineto that are not used, but tell its traces from others."""

KINETO = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy")
"""Categories that messages name."""

COMMS = ("record_param_comms", "c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "rccl:", "xccl:")
"""How host events begin that tell of collectives."""


KEPT = (
    *("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Seq"),
    *("Src Rank", "Dst Rank"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks"),
    *("Global rank start", "Global rank stride", "Input Dims", "Input type"),
)
"""Fields of collectives that are used."""


def kept(args: dict[str, Any]) -> dict[str, Any]:
    """Keep of the fields of an event those that tell of a collective."""
    return {field: args[field] for field in KEPT if field in args}


Row = tuple[str, int, int, dict[str, Any]]
"""Of an event: its name, start and end [ns], and its fields."""


class Note(NamedTuple):
    """A host event that tells of a collective.

    Attributes
    ----------
    name : str
        As it is written.
    start, end : int
        When [ns].
    thread : int
        Where.
    args : dict
        What it says of it.
    """

    name: str
    start: int
    end: int
    thread: int
    args: dict[str, Any]


class Gathered:
    """What the events of a file say.

    Attributes
    ----------
    host, device : Rows
        Events; times in nanoseconds.
    names : Names
        Of both.
    notes : list of Note
        Of collectives, from the host.
    said : dict of int to dict
        Of kernels that communicate: their row, and their fields.
    num_odd, num_used : int
        Events without times, or which end before they begin; and all others that are kept.
    num_numbered, numbered_to : int
        Host events with a number of torch's own, and how far these count.
    others : Counter
        Categories of events that are not known here.
    """

    def __init__(self) -> None:
        self.names, self.places = Names(), Places()
        self.host = Rows("name", "kind", "start", "end", "thread", "correlation", "pid")
        self.device = Rows(
            "name", "kind", "start", "end", "stream", "device", "correlation", "nbytes", "pid",
            "said_step",
        )  # fmt: skip
        self.notes: list[Note] = []
        self.said: dict[int, dict[str, Any]] = {}
        self.num_odd, self.num_used = 0, 0
        self.num_numbered, self.numbered_to = 0, 0
        self.others: Counter[str] = Counter()

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        """Sort in all events; none is kept as it is."""
        for event in events:
            category = event.get("cat")
            if event.get("ph") != "X":
                if event.get("ph") in ("B", "b"):
                    self.others[str(category or "none")] += 1
                continue
            kind = KINDS.get(category) if type(category) is str else None
            if kind is None:
                if str(category).lower() not in OTHERS:
                    self.others[str(category or "none")] += 1
                continue
            try:
                start = nanoseconds(event.get("ts"))
                end = start + nanoseconds(event.get("dur"))
            except ValueError:
                end, start = 0, 1
            if end < start:
                self.num_odd += 1
                continue
            self.num_used += 1
            args = event.get("args")
            row = str(event.get("name", "")), start, end, args if type(args) is dict else {}
            (self._take_device if kind < 0 else self._take_host)(event, kind, row)

    def _take_host(self, event: dict[str, Any], kind: int, row: Row) -> None:
        name, start, end, args = row
        thread, pid = event.get("tid"), event.get("pid")
        if not (type(thread) is type(pid) is int and 0 <= thread < FAR and 0 <= pid < FAR):
            thread, pid = self.places.number(thread), self.places.number(pid)
        correlation = whole(args.get("correlation")) if kind == RUNTIME else -1
        self.host.add((self.names.code(name), kind, start, end, thread, correlation, pid))
        number = args.get("Ev Idx")
        if type(number) is int and number < FAR:
            self.num_numbered += 1
            self.numbered_to = max(self.numbered_to, number + 1)
        if name.startswith(COMMS):
            self.notes.append(Note(name, start, end, thread, kept(args)))

    def _take_device(self, event: dict[str, Any], kind: int, row: Row) -> None:
        name, start, end, args = row
        kind = -1 - kind
        if kind == COMPUTE and is_communication(name):
            kind = COMMUNICATION
            self.said[len(self.device)] = kept(args)
        stream = self.places.number(args.get("stream", event.get("tid")))
        pid = self.places.number(event.get("pid"))
        device, nbytes = whole(args.get("device")), whole(args.get("bytes"))
        correlation, step = whole(args.get("correlation")), whole(args.get("step"))
        place = stream, device, correlation, nbytes, pid, step
        self.device.add((self.names.code(name), kind, start, end, *place))


def note_name(note: Note) -> str:
    """Name the collective that a note tells of, as torch does; ``""`` if it does not say."""
    if note.name == "record_param_comms":
        return collective_name(str(note.args.get("Collective name", "")))
    return collective_name(note.name)
