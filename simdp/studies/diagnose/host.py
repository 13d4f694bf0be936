"""Finds what a host did while its device had nothing to do, and kernels that only copy.

Where there is no device, operators stand for kernels: those that read a value (`.item()`) would
make a host wait for its device, and those that take less than a call costs only cost calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.traces import ANNOTATION, COMPUTE, COPY, RUNTIME, SET, SYNC, HostEvents, RankTrace
from simdp.traces.intervals import NOTHING, Instants
from simdp.traces.kernels import of_kind
from simdp.traces.timeline import OPTIMIZER, RankTimeline

LOADER = re.compile(
    r"dataloader.*(__next__|next)|wait_for_batch|(data|input)_?load|load_?(data|batch)|"
    r"(next|fetch|get)_?batch|copy_batch_to_gpu",
    re.IGNORECASE,
)
"""Annotations under which a host fetches data: torch's own, and usual ones of users."""

FROM_HOST = re.compile(r"HtoD|host(?:(?!host).)*device", re.IGNORECASE)

BLOCKING = re.compile(
    r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|(cuda|hip)Memcpy(_\w+)?$", re.IGNORECASE
)
"""Calls of the runtime in which the host waits for its device."""

MAY_BLOCK = re.compile(r"(cuda|hip|cu)Memcpy\w{0,32}Async", re.IGNORECASE)

LEAST_BLOCKED = 50e-6  # copies that hold the host for less were only enqueued [s]

READS = re.compile(r"aten::(item|_local_scalar_dense|is_nonzero|nonzero|equal)$")
"""Operators whose answer the host waits for; optimizers and loaders read values of the host."""

COMPILING = re.compile(r"\(dynamo_timed\)$|^(entire_frame|entire_backward)_compile$|^dynamo$")
"""Operators and annotations of torch.compile at work."""

SEARCHING = "torch.distributed.ddp.reducer::search_unused_parameters"
"""Operator of DDP with ``find_unused_parameters``."""

TINY = 20e-6  # operators without a device that are shorter cost their call, not their work [s]
NEXT_CALL = 50e-6  # longest time between two calls in a row [s]


def matching(names: Sequence[str], codes: Ints, pattern: re.Pattern[str]) -> Bools:
    """Which events have a name in which the pattern is found."""
    wanted = np.array([bool(pattern.search(name)) for name in names] or [False], dtype=bool)
    return wanted[codes]


class KernelUses(NamedTuple):
    """Uses of a rank's kernels; each has one at most."""

    inputs: Bools  # copies from the host
    copies: Bools  # other copies, casts, changes of a layout
    works: Bools  # all else but collectives
    # reads, tiny, compiles, searches: without a device, operators that read a value, only cost a
    # call, compile, or search unused parameters
    reads: Bools
    tiny: Bools
    compiles: Bools
    searches: Bools


def kernel_uses(trace: RankTrace) -> KernelUses:
    """Find the use of each kernel."""
    kernels = trace.kernels

    def named(pattern: re.Pattern[str]) -> Bools:
        return matching(kernels.names, kernels.name, pattern)

    computes = kernels.kind == COMPUTE
    copied = kernels.kind == COPY
    inputs = copied & named(FROM_HOST)
    nothing = np.zeros(len(kernels), dtype=bool)
    reads = tiny = compiles = searches = nothing
    if trace.on_host:
        own = matching(trace.host.names, trace.host.name, LOADER) | trace.host.named(OPTIMIZER)
        reads = computes & named(READS) & ~inside(_of(trace.host, own, 0.0), kernels.start)
        compiles = computes & named(COMPILING)
        searches = computes & named(re.compile(re.escape(SEARCHING)))
        tiny = computes & (kernels.end - kernels.start < TINY) & ~reads & ~compiles & ~searches
    copies = (copied & ~inputs) | (computes & of_kind(kernels, "copy") & ~tiny)
    others = copies | inputs | reads | tiny | compiles | searches
    works = ~others & np.isin(kernels.kind, (COMPUTE, SET))
    return KernelUses(inputs, copies, works, reads, tiny, compiles, searches)


def num_reads(line: RankTimeline) -> float:
    """Values of tensors that the host reads in a step, in a trace without a device."""
    if not line.trace.on_host:
        return 0.0
    reads = kernel_uses(line.trace).reads & (line.marks.kernel >= 0)
    return float(reads.sum()) / max(line.num_steps, 1)


def fetching(host: HostEvents, offset: float) -> Instants:
    """When the host fetches data [s]."""
    return _of(host, matching(host.names, host.name, LOADER) & (host.kind == ANNOTATION), offset)


def blocked(host: HostEvents) -> Bools:
    """Calls in which the host waits for its device."""
    runtime = host.kind == RUNTIME
    long = host.end - host.start >= LEAST_BLOCKED
    waits = matching(host.names, host.name, BLOCKING)
    blocks: Bools = runtime & (waits | (long & matching(host.names, host.name, MAY_BLOCK)))
    return blocks


def synchronising(host: HostEvents, gaps: Instants, offset: float) -> Instants:
    """Gaps that begin while the host waits for its device, and its waiting in others [s].

    A host that waits launches nothing, so that the device runs dry until its next launch.
    """
    waits = _of(host, blocked(host), offset)
    if not len(waits.start) or not len(gaps.start):
        return NOTHING
    begun = inside(waits, gaps.start)
    return Instants(gaps.start[begun], gaps.end[begun]).plus(gaps.both(waits))


def compiling(host: HostEvents, offset: float) -> Instants:
    """When the host compiles [s]."""
    return _of(host, matching(host.names, host.name, COMPILING), offset)


def searching(host: HostEvents, offset: float) -> Instants:
    """When the host searches parameters that a forward did not use [s]."""
    return _of(host, host.named(SEARCHING), offset)


def inside(some: Instants, at: Floats) -> Bools:
    """Which instants lie in a set."""
    if not len(some.start):
        return np.zeros(len(at), dtype=bool)
    place = np.searchsorted(some.start, at, side="right") - 1
    return (place >= 0) & (at <= some.end[np.maximum(place, 0)])


def behind(chosen: Instants, gaps: Instants) -> Instants:
    """Short gaps that follow some instants at once [s]."""
    if not len(chosen.start) or not len(gaps.start):
        return NOTHING
    near = np.searchsorted(chosen.end, gaps.start + 1e-9, side="right") - 1
    follows = (near >= 0) & (gaps.start - chosen.end[np.maximum(near, 0)] < 1e-9)
    follows &= gaps.end - gaps.start < NEXT_CALL
    return Instants(gaps.start[follows], gaps.end[follows])


def late_gaps(trace: RankTrace, gaps: Instants, offset: float) -> Instants:
    """Gaps before kernels that were launched after the device ran dry [s]."""
    kernels = trace.kernels
    ran = np.flatnonzero(kernels.kind != SYNC)
    if not len(ran) or not len(gaps.start):
        return NOTHING
    follows = np.searchsorted(kernels.start[ran] - offset, gaps.end - 1e-9)
    at = ran[np.minimum(follows, len(ran) - 1)]
    launched = np.fmax(kernels.launched, kernels.launch_end)[at] - offset
    if np.isnan(kernels.launched[ran]).all():
        late = np.ones(len(at), dtype=bool)  # no device: what runs is the host itself
    else:
        late = (launched > gaps.start) | (follows == len(ran))
    return Instants(gaps.start[late], gaps.end[late])


def _of(host: HostEvents, chosen: Bools, offset: float) -> Instants:
    return Instants.of(host.start[chosen] - offset, host.end[chosen] - offset)
