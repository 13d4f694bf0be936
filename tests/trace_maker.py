"""Traces of ranks made by hand: kernels, collectives and host events at the times that one says."""

from pathlib import Path

import numpy as np

from simdp.traces import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HostEvents,
    RankTrace,
    TraceCollectives,
    TraceGroup,
    TraceKernels,
    TraceSteps,
)

LAUNCH = 10e-6
"""What a launch takes the host, in traces made here [s]."""


class RankMaker:
    """Collects what a rank does; `trace` makes the columns of it. Times are in seconds."""

    def __init__(self, rank=0, world_size=1, device="NVIDIA A100-SXM4-80GB", origin_ns=0):
        self.rank, self.world_size, self.device, self.origin_ns = (
            rank,
            world_size,
            device,
            origin_ns,
        )
        self.marks, self.kernels, self.calls, self.notes = [], [], [], []
        self.groups, self.remarks = {}, []

    def step(self, number, begin, end):
        self.marks.append((number, begin, end))

    def kernel(self, start, end, launched=None, kind=COMPUTE, name="gemm", stream=7):
        launched = start - LAUNCH if launched is None else launched
        self.kernels.append((start, end, launched, kind, name, stream))
        return len(self.kernels) - 1

    def copy(self, start, end, name="Memcpy HtoD (Pageable -> Device)"):
        return self.kernel(start, end, kind=COPY, name=name)

    def call(self, name, start, end, elements=1_000_000, **more):
        """A collective with its kernel; more: dtype, group, sequence, peer, out, launched, size."""
        launched = more.pop("launched", start - LAUNCH)
        kernel = self.kernel(start, end, launched, COMMUNICATION, f"ncclDevKernel_{name}", 20)
        self.calls.append((name, start, end, elements, kernel, launched, more))

    def note(self, name, start, end, kind=ANNOTATION, elements=-1):
        self.notes.append((name, start, end, kind, elements))

    def group(self, name, ranks):
        self.groups[name] = TraceGroup(name, "", "nccl", tuple(ranks), len(ranks))

    def trace(self):
        steps = TraceSteps(*(np.array(column) for column in self._steps()))
        order = sorted(range(len(self.kernels)), key=lambda i: self.kernels[i][0])
        place = {old: new for new, old in enumerate(order)}
        return RankTrace(
            path=Path(f"rank{self.rank}.json"),
            source="kineto",
            rank=self.rank,
            world_size=self.world_size,
            device_name=self.device,
            groups=dict(self.groups),
            origin_ns=self.origin_ns,
            steps=steps,
            kernels=self._kernels([self.kernels[i] for i in order], steps),
            collectives=self._collectives(place, steps),
            host=self._host(steps),
            remarks=tuple(self.remarks),
        )

    def _steps(self):
        marks = sorted(self.marks, key=lambda mark: mark[1])
        return zip(*marks, strict=True) if marks else ([], [], [])

    def _kernels(self, rows, steps):
        start, end, launched, kind, names, stream = columns(rows, 6)
        known, codes = coded(names)
        n = len(rows)
        return TraceKernels(
            names=known,
            name=codes,
            kind=np.array(kind, dtype=np.int64),
            start=np.array(start, dtype=float),
            end=np.array(end, dtype=float),
            stream=np.array(stream, dtype=np.int64),
            device=np.zeros(n, dtype=np.int64),
            launched=np.array(launched, dtype=float),
            launch_end=np.array(launched, dtype=float) + LAUNCH,
            step=step_of(steps, launched),
            op=np.full(n, -1),
            nbytes=np.full(n, np.nan),
        )

    def _collectives(self, place, steps):
        rows = sorted(self.calls, key=lambda call: call[1])
        names, start, end, elements, kernel, launched, more = columns(rows, 7)
        known, codes = coded(names)
        n = len(rows)
        return TraceCollectives(
            names=known,
            name=codes,
            kernel=np.array([place[one] for one in kernel], dtype=np.int64),
            num_elements=np.array(elements, dtype=np.int64),
            out_elements=np.array([one.get("out", -1) for one in more], dtype=np.int64),
            dtype=np.array([one.get("dtype", "float32") for one in more], dtype=str),
            group=np.array([one.get("group", "0") for one in more], dtype=str),
            group_size=np.array([one.get("size", self.world_size) for one in more], dtype=np.int64),
            sequence=np.array([one.get("sequence", -1) for one in more], dtype=np.int64),
            peer=np.array([one.get("peer", -1) for one in more], dtype=np.int64),
            algorithm=np.full(n, "RING"),
            protocol=np.full(n, "LL"),
            start=np.array(start, dtype=float),
            end=np.array(end, dtype=float),
            step=step_of(steps, launched),
            enqueued=np.array(launched, dtype=float),
        )

    def _host(self, steps):
        rows = sorted(self.notes, key=lambda note: note[1])
        names, start, end, kind, elements = columns(rows, 5)
        known, codes = coded(names)
        return HostEvents(
            names=known,
            name=codes,
            kind=np.array(kind, dtype=np.int64),
            start=np.array(start, dtype=float),
            end=np.array(end, dtype=float),
            thread=np.zeros(len(rows), dtype=np.int64),
            step=step_of(steps, start),
            elements=np.array(elements, dtype=np.int64),
        )


def columns(rows, number):
    return list(zip(*rows, strict=True)) if rows else [()] * number


def coded(names):
    table = {}
    codes = [table.setdefault(name, len(table)) for name in names]
    return tuple(table), np.array(codes, dtype=np.int64)


def step_of(steps, at):
    """The step in which each instant lies, or -1."""
    at = np.array(at, dtype=float)
    if not len(steps):
        return np.full(len(at), -1)
    place = np.searchsorted(steps.start, at, side="right") - 1
    inside = (place >= 0) & (at < steps.end[np.maximum(place, 0)])
    return np.where(inside, place, -1)


def job(delays, compute=0.1, transfer=0.01, origins=None, fetching=None, device=None):
    """Ranks that compute, meet in an all_reduce, and update; returns their traces.

    ``delays`` are seconds that each step's compute lasts longer, by step and rank; of these,
    ``fetching`` are spent by the loader, before it.
    """
    delays = np.asarray(delays, dtype=float)
    fetched = np.zeros_like(delays) if fetching is None else np.asarray(fetching, dtype=float)
    num_steps, n = delays.shape
    makers = [
        RankMaker(rank, n, device, 0 if origins is None else origins[rank]) for rank in range(n)
    ]
    begin = 1.0
    for step in range(num_steps):
        entry = begin + compute + delays[step] + fetched[step]
        done = entry.max() + transfer
        for rank, maker in enumerate(makers):
            shift = 0.0 if origins is None else origins[rank] * 1e-9
            first = begin + fetched[step, rank]
            if fetched[step, rank]:
                name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
                maker.note(name, begin - shift, first - shift)
            maker.kernel(first - shift, entry[rank] - shift, launched=first - shift)
            maker.call("all_reduce", entry[rank] - shift, done - shift, launched=first - shift)
            maker.kernel(done - shift, done + 0.001 - shift, launched=first - shift, name="sgd")
            maker.step(step + 1, begin - shift, done + 0.001 - shift)
        begin = done + 0.001
    return [maker.trace() for maker in makers]
