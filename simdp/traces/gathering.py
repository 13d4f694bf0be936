"""Gathers events of a trace into rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from simdp.traces.kernels import is_communication
from simdp.traces.rows import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    FAR,
    OP,
    RUNTIME,
    SET,
    SIZED,
    SYNC,
    DeviceTable,
    HostTable,
    NameTable,
    Places,
    TableRows,
    nanoseconds,
    whole,
)

# Words --------------------------------------------------------------------------------------------

COLLECTIVES = {
    "all_reduce": ("allreduce", "allreducecoalesced", "allreducesparse"),
    "all_gather": (
        "allgather",
        "allgatherbase",
        "allgathercoalesced",
        "allgatherintotensor",
        "allgatherintotensorcoalesced",
    ),
    "reduce_scatter": (
        "reducescatter",
        "reducescatterbase",
        "reducescattertensor",
        "reducescattertensorcoalesced",
        "reducescattercoalesced",
    ),
    "broadcast": ("broadcast", "broadcastoop", "broadcastuniqueid"),
    "reduce": ("reduce", "reduceoop"),
    "all_to_all": ("alltoall", "alltoallv", "alltoallbase", "alltoallsingle"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "send": ("send",),
    "recv": ("recv", "recvanysource"),
    "barrier": ("barrier", "allreducebarrier", "monitoredbarrier"),
    "send_recv": ("sendrecv", "coalesced", "batchisendirecv"),
}
"""By torch's names: all others, without underscores and in small letters."""

_NAMES = {other: name for name, others in COLLECTIVES.items() for other in others}

DTYPES = {
    "float64": ("double", "f64"),
    "float32": ("float", "f32"),
    "float16": ("half", "f16", "c10::half"),
    "bfloat16": ("bfloat16", "bf16", "c10::bfloat16"),
    "int64": ("long", "i64", "long int"),
    "int32": ("int", "i32"),
    "int16": ("short", "short int"),
    "int8": ("char", "i8", "signed char"),
    "uint8": ("byte", "u8", "unsigned char"),
    "uint32": ("u32", "unsigned int"),
    "uint64": ("u64", "unsigned long"),
    "bool": ("bool",),
    "complex64": ("complexfloat", "c10::complex<float>"),
    "complex128": ("complexdouble", "c10::complex<double>"),
    "float8_e4m3fn": ("float8_e4m3fn", "f8e4m3", "c10::float8_e4m3fn"),
    "float8_e5m2": ("float8_e5m2", "f8e5m2", "c10::float8_e5m2"),
}
"""By torch's names: what scalar types, C++ and NCCL's kernels call them, in small letters."""

_DTYPES = {other: name for name, others in DTYPES.items() for other in (name, *others)}

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
"""Collectives whose kernels are named after the type of what they add; others send bytes."""

_KERNEL = re.compile(
    r"^(?:nccl|rccl|msccl)\w*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll)(?![a-z])"
)
_WAYS = re.compile(
    r"_(RING|TREE|COLLNET|COLLNET_DIRECT|COLLNET_CHAIN|NVLS|NVLS_TREE|PAT)_(LL128|LL|SIMPLE)(?=_|\(|$)"
)
_TYPE = re.compile(
    r"_(?:Sum|Prod|Max|Min|MinMax|Avg|PreMulSum|SumPostDiv)_(\w{1,40}?)(?=_RING|_TREE|_COLLNET|_NVLS|_PAT|\(|$)"
)
_PREFIX = re.compile(r"^\w+::?")


def collective_name(written: str) -> str:
    """Name a collective as torch does, from any of its other names; ``""`` if it is none.

    ``allreduce``, ``nccl:all_reduce``, ``c10d::allreduce_``, ``_allgather_base`` and
    ``nccl:send 0->1`` are such names.
    """
    word = _PREFIX.sub("", written).split(" ")[0]
    return _NAMES.get(word.replace("_", "").lower(), "")


def dtype_name(written: object) -> str:
    """Name a type as torch does: ``Float``, ``c10::BFloat16`` and ``f32``; ``""`` if unknown."""
    return _DTYPES.get(str(written).lower().removeprefix("torch."), "")


class KernelName(NamedTuple):
    """Fields in the name of an NCCL kernel; empty if absent."""

    collective: str  # ``"all_reduce"``, ...; ``"send_recv"`` of messages and all_to_all
    # algorithm, protocol: ``"RING"``, ``"TREE"``, ...; ``"LL"``, ``"LL128"``, ``"SIMPLE"``
    algorithm: str
    protocol: str
    dtype: str  # data type of a reduction


def kernel_name(name: str) -> KernelName:
    """Read the name of a kernel.

    ``ncclKernel_AllReduce_RING_LL_Sum_float(...)`` was the scheme up to NCCL 2.18, and then
    ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``.
    """
    kind, ways, of = _KERNEL.search(name), _WAYS.search(name), _TYPE.search(name)
    collective = collective_name(kind[1]) if kind else ""
    algorithm, protocol = (ways[1], ways[2]) if ways else ("", "")
    dtype = ""
    if of and collective in REDUCING:
        dtype = dtype_name(of[1].removeprefix("__nv_").removesuffix("_t"))
    return KernelName(collective, algorithm, protocol, dtype)


# Gathering ----------------------------------------------------------------------------------------

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
"""Beginnings of names of host events about collectives."""


KEPT = (
    *("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Seq"),
    *("Src Rank", "Dst Rank"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks"),
    *("Global rank start", "Global rank stride", "Input Dims", "Input type"),
)
"""Fields of collectives that are used."""


def kept(args: dict[str, object]) -> dict[str, object]:
    """Keep of the fields of an event those that tell of a collective."""
    return {field: args[field] for field in KEPT if field in args}


Row = tuple[str, int, int, dict[str, object]]
"""Of an event: its name, start and end [ns], and its fields."""


def elements_of(shapes: object, place: int) -> int:
    """Count the elements of one of an operator's inputs; -1 if its shape is unknown."""
    shape = shapes[place] if isinstance(shapes, list) and place < len(shapes) else None
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        return -1
    return whole(prod(shape)) if shape else -1


class Note(NamedTuple):
    """A host event that describes a collective."""

    name: str  # as it is written
    # start, end: when [ns]
    start: int
    end: int
    thread: int  # where
    args: dict[str, object]  # its fields


class Gathered:
    """Events of a file, collected.

    Attributes
    ----------
    host, device : TableRows
        Events; times in nanoseconds.
    names : NameTable
        Of both.
    notes : list of Note
        Of collectives, from the host.
    kernel_fields : dict of int to dict
        Of kernels that communicate: their row, and their fields.
    num_odd, num_used : int
        Events without times, or which end before they begin; and all others that are kept.
    num_numbered, numbered_to : int
        Host events with a number of torch's own, and how far these count.
    others : Counter
        Categories of events that are not known here.
    """

    def __init__(self) -> None:
        self.names, self.places = NameTable(), Places()
        self.host, self.device = TableRows(HostTable), TableRows(DeviceTable)
        self.notes: list[Note] = []
        self.kernel_fields: dict[int, dict[str, object]] = {}
        self.num_odd, self.num_used = 0, 0
        self.num_numbered, self.numbered_to = 0, 0
        self.others: Counter[str] = Counter()

    def take(self, events: Iterable[dict[str, object]]) -> None:
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

    def _take_host(self, event: dict[str, object], kind: int, row: Row) -> None:
        name, start, end, args = row
        thread, pid = event.get("tid"), event.get("pid")
        if not (type(thread) is type(pid) is int and 0 <= thread < FAR and 0 <= pid < FAR):
            thread, pid = self.places.number(thread), self.places.number(pid)
        correlation = whole(args.get("correlation")) if kind == RUNTIME else -1
        size = elements_of(args.get("Input Dims"), SIZED[name]) if name in SIZED else -1
        self.host.add((self.names.code(name), kind, start, end, thread, correlation, pid, size))
        number = args.get("Ev Idx")
        if type(number) is int and number < FAR:
            self.num_numbered += 1
            self.numbered_to = max(self.numbered_to, number + 1)
        if name.startswith(COMMS):
            self.notes.append(Note(name, start, end, thread, kept(args)))

    def _take_device(self, event: dict[str, object], kind: int, row: Row) -> None:
        name, start, end, args = row
        kind = -1 - kind
        if kind == COMPUTE and is_communication(name):
            kind = COMMUNICATION
            self.kernel_fields[len(self.device)] = kept(args)
        stream = self.places.number(args.get("stream", event.get("tid")))
        pid = self.places.number(event.get("pid"))
        device, nbytes = whole(args.get("device")), whole(args.get("bytes"))
        correlation, step = whole(args.get("correlation")), whole(args.get("step"))
        place = stream, device, correlation, nbytes, pid, step
        self.device.add((self.names.code(name), kind, start, end, *place))


def note_name(note: Note) -> str:
    """Name a note's collective, as torch does; ``""`` if absent."""
    if note.name == "record_param_comms":
        return collective_name(str(note.args.get("Collective name", "")))
    return collective_name(note.name)
