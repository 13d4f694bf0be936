"""Rows of a trace: kernels, collectives, host events.

In a trace without a device the outermost operators of each thread replace kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class TraceCollectives:
    """Collectives and messages of a rank, sorted by their start."""

    # every name once, in torch's spelling: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
    # ``broadcast``, ``reduce``, ``all_to_all``, ``gather``, ``scatter``, ``send``, ``recv``,
    # ``barrier``, ``send_recv`` (messages, or an all_to_all, if the trace does not distinguish
    # them), ``unknown``
    names: tuple[str, ...]
    name: Ints  # which of ``names`` each has
    kernel: Ints  # index into the kernels, or -1 where none belongs to it
    # num_elements, out_elements: of this rank's input and output; -1 unknown
    num_elements: Ints
    out_elements: Ints
    dtype: Array  # in torch's name, ``"float32"``; ``""`` unknown
    group: Array  # name of the process group; ``""`` unknown
    group_size: Ints  # its ranks; -1 unknown
    sequence: Ints  # number of the collective in its group; -1 unknown
    peer: Ints  # of a message the other rank, by its number in the group; -1 unknown, or none
    # algorithm, protocol: ``"RING"``, ``"TREE"`` ... and ``"LL"``, ``"LL128"``, ``"SIMPLE"``;
    # ``""`` unknown.
    algorithm: Array
    protocol: Array
    # start, end: of the kernel, else of the host's call [s]; a rank enters at the start, and waits
    # there for the others
    start: Floats
    end: Floats
    step: Ints  # index of the step in which the host called it, or -1
    enqueued: Floats  # the host's call [s]; nan unknown

    def __len__(self) -> int:
        return len(self.start)

    @property
    def called(self) -> Floats:
        """The host's call, or the start where that is not known [s]."""
        return np.where(np.isnan(self.enqueued), self.start, self.enqueued)

    def nbytes(self, place: int, group_size: int) -> float | None:
        """Size of a collective's whole buffer, as nccl-tests counts it [bytes]; None if unknown.

        Parameters
        ----------
        place : int
            Which collective.
        group_size : int
            Its number of ranks; -1 unknown.
        """
        item = ITEMSIZE.get(str(self.dtype[place]))
        name = self.names[self.name[place]]
        given, got = int(self.num_elements[place]), int(self.out_elements[place])
        if name == "all_gather" and got > 0:
            whole = got
        elif name in ("all_gather", "gather"):
            whole = given * group_size if given >= 0 and group_size > 0 else -1
        elif name == "scatter" and got > 0:
            whole = got * group_size if group_size > 0 else -1
        elif name == "reduce_scatter" and given < 0:
            whole = got * group_size if got >= 0 and group_size > 0 else -1
        else:
            whole = given if given >= 0 else got
        return None if whole < 0 or item is None else float(item * whole)


ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes per element of torch's types."""

COMPUTE, COMMUNICATION, COPY, SET, SYNC = range(5)
"""Kinds of kernels: work, collectives and messages, gpu_memcpy, gpu_memset, cuda_sync."""

KERNEL_KINDS = ("compute", "communication", "copy", "set", "sync")
"""The kinds in words, by their codes."""


@dataclass(frozen=True, eq=False)
class TraceKernels:
    """Device events, sorted by their start."""

    names: tuple[str, ...]  # every name once
    name: Ints  # which of ``names`` each has
    kind: Ints  # ``COMPUTE``, ``COMMUNICATION``, ``COPY``, ``SET`` or ``SYNC``
    # start, end: on the device, after the trace's origin [s]
    start: Floats
    end: Floats
    stream: Ints  # on which stream; without a device, of which thread
    device: Ints  # which device of the process; -1 unknown
    # launched, launch_end: the host call that launched it [s]; nan if it is not in the trace
    launched: Floats
    launch_end: Floats
    # index of the step in which it was *launched*, -1 outside of all, or if that is not known
    step: Ints
    op: Ints  # index into the host events of the operator that it belongs to, or -1
    nbytes: Floats  # of copies and sets [bytes]; nan for all else

    def __len__(self) -> int:
        return len(self.start)

    @property
    def called(self) -> Floats:
        """The host's launch, or the start where that is not known [s]."""
        return np.where(np.isnan(self.launched), self.start, self.launched)


OP, ANNOTATION, RUNTIME = range(3)
"""Kinds of host events: operators, annotations, calls of the device's runtime and driver."""

SIZED = {
    "aten::linear": 0,
    "aten::conv1d": 0,
    "aten::conv2d": 0,
    "aten::conv3d": 0,
    "aten::embedding": 1,
    "torch::autograd::AccumulateGrad": 0,
}
"""Operators whose inputs tell the size of a batch, or of a gradient: which input does."""

HOST_KINDS = ("op", "annotation", "runtime")
"""The kinds in words, by their codes."""


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Operators, annotations and calls of the runtime, sorted by their start."""

    names: tuple[str, ...]  # every name once
    name: Ints  # which of ``names`` each has
    kind: Ints  # ``OP``, ``ANNOTATION`` or ``RUNTIME``
    # start, end: after the trace's origin [s]
    start: Floats
    end: Floats
    thread: Ints  # on which thread
    step: Ints  # index of the step in which it began, or -1
    elements: Ints  # of the tensor that `SIZED` names; -1 unknown, and of all others

    def __len__(self) -> int:
        return len(self.start)

    def named(self, *prefixes: str) -> Bools:
        """Which events have a name with one of some prefixes."""
        codes = [code for code, name in enumerate(self.names) if name.startswith(prefixes)]
        return np.isin(self.name, codes)


@dataclass(frozen=True)
class TraceGroup:
    """A process group."""

    name: str  # as torch calls it: ``"0"``, or ``"default_pg"`` in older traces
    description: str  # its name in the program; may be empty
    backend: str  # ``"nccl"``, ``"gloo"``; empty if it is not known
    ranks: tuple[int, ...] | None  # its ranks; None if they are not known, or cut
    size: int | None  # number of its ranks


@dataclass(frozen=True, eq=False)
class TraceSteps:
    """The steps of a rank, by its host: one per ``ProfilerStep#N``, in order."""

    number: Ints  # N of the annotation
    # start, end: on the host's clock, after the trace's origin [s]
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, eq=False)
class RankTrace:
    """Trace of one rank; all times are seconds after ``origin_ns``."""

    path: Path
    source: Literal["kineto", "simdp"]  # writer: torch's profiler, or simdp
    # rank, world_size: which rank, of how many; None if that is not known
    rank: int | None
    world_size: int | None
    device_name: str | None  # name from the driver; None without a device
    groups: dict[str, TraceGroup]  # process groups, by their names
    origin_ns: int  # clock of the file at time 0 [ns]; ranks of one host share it
    steps: TraceSteps  # empty if the trace was taken without a schedule
    kernels: TraceKernels  # events of the device
    collectives: TraceCollectives
    host: HostEvents  # events of the host
    remarks: tuple[str, ...]  # missing, cut, sampled or unusual data: whole sentences
    machine: str | None = None  # catalogue name of the job's machine; only in simdp's own traces
    on_host: bool = False  # whether there is no device, so that operators stand for kernels


# Rows ---------------------------------------------------------------------------------------------

BLOCK = 2**14
"""Rows that wait in lists before they become an array."""

FAR = 2**62
"""Numbers beyond it are none that a trace can mean."""

_NUMBER = re.compile(r"(?<!\d)\d{1,17}$|-\d{1,16}$")


@dataclass(frozen=True, eq=False)
class EventTable:
    """Events of a file in columns of whole numbers."""

    name: Ints  # by its number in the file's `NameTable`
    kind: Ints
    # start, end: on the file's clock [ns]
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, chosen: Ints | Bools) -> Self:
        """Take some rows."""
        return type(self)(*(column[chosen] for column in vars(self).values()))

    def order(self) -> Ints:
        """Rows by their start, longer ones first."""
        return np.lexsort((-self.end, self.start))

    def in_order(self) -> Self:
        """Sort the events by their start, longer ones first."""
        return self.rows(self.order())


@dataclass(frozen=True, eq=False)
class HostTable(EventTable):
    """Host events; -1 where a number is unknown."""

    thread: Ints
    correlation: Ints  # of a call of the runtime: what it launched
    pid: Ints
    elements: Ints  # as in `HostEvents`


@dataclass(frozen=True, eq=False)
class DeviceTable(EventTable):
    """Device events; -1 where a number is unknown."""

    stream: Ints
    device: Ints
    correlation: Ints
    nbytes: Ints
    pid: Ints
    own_step: Ints  # its step, in traces of ours


@dataclass(frozen=True, eq=False)
class StandInTable(EventTable):
    """Host events that replace kernels in a trace without a device."""

    stream: Ints  # their thread
    op: Ints  # row of the host event


Table = TypeVar("Table", bound=EventTable)


class TableRows(Generic[Table]):
    """Rows of a table that grows.

    Parameters
    ----------
    kind : type
        The table.
    """

    def __init__(self, kind: type[Table]) -> None:
        self._kind = kind
        self._waiting: list[tuple[int, ...]] = []
        self._blocks: list[Ints] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len + len(self._waiting)

    def add(self, row: tuple[int, ...]) -> None:
        """Add a row."""
        self._waiting.append(row)
        if len(self._waiting) >= BLOCK:
            self._pack()

    def _pack(self) -> None:
        self._blocks.append(np.array(self._waiting, dtype=np.int64))
        self._len += len(self._waiting)
        self._waiting.clear()

    def table(self) -> Table:
        """Give the columns; the rows are gone from here afterwards."""
        if self._waiting:
            self._pack()
        width = len(fields(self._kind))
        whole = np.concatenate(self._blocks) if self._blocks else np.empty((0, width))
        self._blocks.clear()
        self._len = 0
        return self._kind(
            *(np.ascontiguousarray(whole[:, i], dtype=np.int64) for i in range(width))
        )


class NameTable:
    """Texts by numbers, each kept once."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """Number of a text."""
        return self._codes.setdefault(name, len(self._codes))

    def listed(self) -> tuple[str, ...]:
        """All texts, by their numbers."""
        return tuple(self._codes)


class Places:
    """Threads and processes by numbers: their own, or below -1 where they have none."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def number(self, written: object) -> int:
        """Number of a thread, ``13544``, ``"13544"`` or ``"stream 7"``."""
        if type(written) is int and -FAR < written < FAR:
            return written
        text = str(written)
        digits = _NUMBER.search(text)
        if digits:
            return int(digits[0])
        return self._codes.setdefault(text, -2 - len(self._codes))


def nanoseconds(written: object) -> int:
    """Read an instant or a duration in microseconds, to the nanosecond.

    Raises
    ------
    ValueError
        If it is no number, or not finite, or beyond all clocks.
    """
    if type(written) is int:
        ns = written * 1000
    elif type(written) is str:
        try:
            is_usual = written[-4:-3] == "."
            ns = int(written[:-4] + written[-3:]) if is_usual else _decimal(written)
        except ValueError:
            ns = _decimal(written)
    else:
        raise ValueError(f"no time: {written!r}")
    if not -FAR < ns < FAR:
        raise ValueError(f"no time: {written!r}")
    return ns


def _decimal(written: str) -> int:
    try:
        number = Decimal(written)
    except InvalidOperation:
        raise ValueError(f"no time: {written!r}") from None
    if not number.is_finite() or abs(number) > FAR:
        raise ValueError(f"no time: {written!r}")
    return round(number * 1000)


def whole(written: object, otherwise: int = -1) -> int:
    """Read a whole number; return ``otherwise`` for anything else."""
    if type(written) is int:
        return written if -FAR < written < FAR else otherwise
    if type(written) is str:
        try:
            return int(_decimal(written) // 1000)
        except ValueError:
            return otherwise
    return otherwise


# Plain --------------------------------------------------------------------------------------------


def text(value: object, otherwise: str = "") -> str:
    """Take a text."""
    return value if isinstance(value, str) else otherwise


def number(value: object) -> int | None:
    """Take a whole number; None for all else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and -FAR < value < FAR else None


def quantity(value: object, unit: float) -> float | None:
    """Take a number that is not negative, in units of ``unit``; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < FAR:
        return None
    return value * unit


def mapping(value: object) -> dict[object, object]:
    """Take a dictionary; an empty one for all else."""
    return value if isinstance(value, dict) else {}


def listed(value: object, limit: int = 2**20) -> list[object]:
    """Take a list or a tuple, as far as a limit; an empty one for all else."""
    return list(value[:limit]) if isinstance(value, list | tuple) else []
