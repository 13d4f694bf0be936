"""Rank trace: what the trace of one rank says, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simdp.arrays import Floats, Ints
from simdp.traces.collectives import Collectives
from simdp.traces.host_events import HostEvents
from simdp.traces.kernels import Kernels


@dataclass(frozen=True)
class TraceGroup:
    """A process group.

    Attributes
    ----------
    name : str
        As torch calls it: ``"0"``, or ``"default_pg"`` in older traces.
    description : str
        What the program calls it; may be empty.
    backend : str
        ``"nccl"``, ``"gloo"``; empty if it is not known.
    ranks : tuple of int, or None
        Its ranks; None if they are not known, or cut.
    size : int or None
        How many they are.
    """

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...] | None
    size: int | None


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a rank, by its host: one per ``ProfilerStep#N``, in order.

    Attributes
    ----------
    number : ndarray, int64
        N.
    start, end : ndarray, float64
        On the host's clock, after the trace's origin [s].
    """

    number: Ints
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, eq=False)
class RankTrace:
    """What the trace of one rank says; all times are seconds after ``origin_ns``.

    Attributes
    ----------
    path : Path
        Which file.
    source : "kineto" or "simdp"
        Who wrote it: torch's profiler, or we.
    rank, world_size : int or None
        Which rank, of how many; None if that is not known.
    device_name : str or None
        As the driver says it; None without a device.
    groups : dict of str to TraceGroup
        Process groups, by their names.
    origin_ns : int
        What the clock of the file said at time 0 [ns]; ranks of one host share it.
    steps : Steps
        Empty if the trace was taken without a schedule.
    kernels : Kernels
        What the device did.
    collectives : Collectives
        What was sent.
    host : HostEvents
        What the host did.
    remarks : tuple of str
        What is missing, cut, sampled or odd: whole sentences.
    machine : str or None
        What the job ran on, as the catalogue calls it; only our own traces say so.
    """

    path: Path
    source: Literal["kineto", "simdp"]
    rank: int | None
    world_size: int | None
    device_name: str | None
    groups: dict[str, TraceGroup]
    origin_ns: int
    steps: Steps
    kernels: Kernels
    collectives: Collectives
    host: HostEvents
    remarks: tuple[str, ...]
    machine: str | None = None
