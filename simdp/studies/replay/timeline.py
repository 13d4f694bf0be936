"""Timeline of one device in one step: its kernels by phase, apart from waiting.

Before each kernel its compute streams may be idle. Idle time until a collective ended, which a
kernel that was launched by then had to wait for, belongs to that collective; the rest is the
host's, which had not launched the kernel yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.hardware import Contention, Device
from simdp.errors import ScenarioError
from simdp.results.collective import bus_bandwidth_factor
from simdp.traces import ANNOTATION, COMMUNICATION, SYNC, RankTrace
from simdp.traces.intervals import Instants, union
from simdp.traces.timeline import OPTIMIZER, RankTimeline

# Steps --------------------------------------------------------------------------------------------

MARKED_BY = {
    "Optimizer.step": "no ProfilerStep: steps go from one Optimizer.step to the next",
    "": "no ProfilerStep and no Optimizer.step: the whole trace counts as one step",
}
"""Remarks on steps without ``ProfilerStep``."""


@dataclass(frozen=True, eq=False)
class StepWindow:
    """A step of one rank."""

    # kernels, collectives: indices of its kernels, without those of communication, and of its
    # collectives
    kernels: Ints
    collectives: Ints
    # begin, end: on the device: from the end of the step before to the end of its own last kernel
    # [s]
    begin: float
    end: float
    # host_begin, host_end: on the host [s]
    host_begin: float
    host_end: float


def windows(line: RankTimeline) -> list[StepWindow]:
    """Find the steps of a rank that a replay takes; one at least.

    The first of several is left out: it warms up, or began before the trace did.

    Raises
    ------
    ScenarioError
        If no step has a kernel.
    """
    kernels, marks, path = line.trace.kernels, line.marks, line.trace.path
    busy = ~np.isin(kernels.kind, (COMMUNICATION, SYNC))
    if not busy.any():
        raise ScenarioError(
            f"{path}: has no kernels and no operators, so that there is nothing to "
            "replay; record with activities=[CPU, CUDA]."
        )
    step_windows, before = list[StepWindow](), float("nan")
    for k, (begin, end) in enumerate(zip(marks.start.tolist(), marks.end.tolist(), strict=True)):
        inside = np.flatnonzero((marks.kernel == k) & busy)
        if not len(inside):
            before = float("nan")
            continue
        last = float(kernels.end[inside].max())
        first = float(kernels.start[inside].min())
        if before != before:
            before = min(begin, first) if np.isfinite(begin) else first
        sent = np.flatnonzero(marks.collective == k)
        step_windows.append(StepWindow(inside, sent, before, last, begin, end))
        before = last
    if not step_windows:
        raise ScenarioError(
            f"{path}: no kernel was launched in any of its steps; record whole steps."
        )
    return step_windows[1:] if len(step_windows) > 1 else step_windows


# Phases -------------------------------------------------------------------------------------------

FORWARD, BACKWARD, UPDATE = range(3)
"""Forward begins with the step; kernels before it are forward's, and clipping the update's."""

BACKWARD_OPS = "autograd::engine::evaluate_function"

JOIN = 1e-3  # largest gap between operators of one backward pass [s]

TAKEN = "Memcpy DtoD gradients"

SAME = 1e-9  # instants that differ by less are the same [s]

OWN = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
"""First words of kernels' names in trace.json, and last ones in traces by rank."""


def phases(trace: RankTrace, window: StepWindow, names: Sequence[str], launched: Floats) -> Ints:
    """Assign each kernel of a step to a phase.

    Parameters
    ----------
    trace : RankTrace
        Of one rank.
    window : StepWindow
        The step.
    names : sequence of str
        Of its kernels, in the order of their start.
    launched : ndarray, shape `(num_kernels,)`
        The host's launches [s].

    Returns
    -------
    ndarray, shape `(num_kernels,)`, int64
        Backward for kernels that its operators launch; update for those within the optimizer's
        annotation or behind backward; forward for all others.
    """
    if trace.source == "simdp":
        return _carried_on([_own(name) for name in names])
    back = _inside(trace, window, launched, BACKWARD_OPS, JOIN)
    step = _inside(trace, window, launched, OPTIMIZER, 0.0)
    phase_of = np.full(len(names), FORWARD)
    phase_of[back] = BACKWARD
    if back.any():
        behind = launched > launched[back].max()
        phase_of[behind] = UPDATE
    phase_of[step] = UPDATE
    return phase_of


def _own(name: str) -> int:
    """Phase in a name of our own traces; -1 for none."""
    if name == TAKEN:
        return UPDATE
    first, last = name.split(" ", 1)[0], name.rsplit("_", 1)[-1]
    return OWN.get(first, OWN.get(last, -1))


def _carried_on(own: Sequence[int]) -> Ints:
    """Give kernels without a phase that of the kernel before."""
    carried, phase = [], FORWARD
    for known_phase in own:
        phase = known_phase if known_phase >= 0 else phase
        carried.append(phase)
    return np.array(carried, dtype=np.int64)


def _inside(
    trace: RankTrace, window: StepWindow, launched: Floats, prefix: str, join: float
) -> Bools:
    """Return which kernels were launched during host events with a prefix."""
    host = trace.host
    at = host.named(prefix) & (host.start >= window.host_begin) & (host.start < window.host_end)
    start, end = union(host.start[at], host.end[at] + join)
    if not len(start):
        return np.zeros(len(launched), dtype=bool)
    place = np.searchsorted(start, launched + SAME, side="right") - 1
    return (place >= 0) & (launched <= end[np.maximum(place, 0)] - join + SAME)


# Kernels ------------------------------------------------------------------------------------------

TOLERANCE = 2e-9  # instants that differ by less are the same [s]
QUEUED = 1e-7  # largest gap to the collective before of one that may have waited for it [s]

LOADER = "enumerate(DataLoader)"

COPIED = "Memcpy DtoD"

UNIT_COPIES = ("Memcpy DtoD", "split_with_sizes_copy", "chunk_cat", "fsdp::")
"""Names of copies between units and the buffers of collectives: fully_shard has them,
FullyShardedDataParallel has not."""

HOOKS = ("host hook", "host launch")
"""Annotations of our own traces for the cluster's costs of gradients and collectives."""


@dataclass(frozen=True)
class StepCollective:
    """One collective of a step."""

    name: str  # ``"all_reduce"`` and so on
    label: str  # name of its kernel
    nbytes: float  # of the whole buffer, as nccl-tests counts; nan unknown
    dtype: str  # in torch's name; empty unknown
    group: str  # name of its process group
    group_size: int  # its ranks; -1 unknown
    after: int  # kernels of the step that the host had launched before it
    # whether it may have been launched earlier: it began when the one before it ended, and the
    # host's call is not known
    queued: bool
    seconds: float  # time of its kernel: waiting for the last rank and the transfer [s]
    # start, end: on the trace's clock [s]
    start: float
    end: float
    until: int = 0  # kernels of the step that began before it ended


@dataclass(frozen=True, eq=False)
class StepWork:
    """Kernels of one rank's device in one step, in the order of their start."""

    names: tuple[str, ...]  # their names
    phase: Ints  # as from `phases`
    busy: Floats  # time that each adds to the busy time of the device [s]
    idle: Floats  # time that the device waits for the host before each, apart from input [s]
    waits: Floats  # time that the device waits for a collective before each [s]
    nbytes: Floats  # of copies; nan for all else [bytes]
    launched: Floats  # the host's call, else its start [s]
    stalled: float  # time that the device waits for the host's input [s]
    # begin, end: of the step on the device [s]
    begin: float
    end: float
    sent: tuple[StepCollective, ...]  # in the order of their start


class ClusterCharges(NamedTuple):
    """Costs that the replay's cluster charges, and that are removed from a trace."""

    copies: bool = False  # copies of gradients, as our own traces have them
    slowdown: float | Contention = 0.0  # relative increase of compute time during a collective
    device: Device | None = None  # that it slows down


def _slowdowns(trace: RankTrace, charges: ClusterCharges) -> Floats:
    """Relative increase of compute time beside each collective of a trace.

    A collective takes the shortest time of all alike, the others wait besides; the full bandwidth
    is the largest of any.
    """
    sent, rule = trace.collectives, charges.slowdown
    if not isinstance(rule, Contention):
        return np.full(len(sent), rule)
    assert charges.device is not None, "a machine with contention has a device"
    calls = [
        (sent.names[name], size, sent.nbytes(place, size) or 0.0)
        for place, (name, size) in enumerate(
            zip(sent.name.tolist(), sent.group_size.tolist(), strict=True)
        )
    ]
    shortest: dict[tuple[str, int, float], float] = {}
    for call, seconds in zip(calls, (sent.end - sent.start).tolist(), strict=True):
        shortest[call] = min(seconds, shortest.get(call, np.inf))
    rates = {
        (name, n, size): size * (bus_bandwidth_factor(name, max(n, 1)) or 1.0) / seconds
        for (name, n, size), seconds in shortest.items()
        if seconds > 0
    }
    full = max(rates.values(), default=0.0)
    return np.array([rule.slowdown(charges.device, rates.get(call, 0.0), full) for call in calls])


def step_work(trace: RankTrace, window: StepWindow, charges: ClusterCharges) -> StepWork:
    """Divide a step into busy, idle and waiting time of its kernels.

    Parameters
    ----------
    trace : RankTrace
        Of one rank.
    window : StepWindow
        The step.
    charges : ClusterCharges
        Costs to remove.
    """
    kernels, at = trace.kernels, window.kernels
    names = tuple(kernels.names[code] for code in kernels.name[at].tolist())
    start, end = kernels.start[at], kernels.end[at]
    done = np.maximum.accumulate(np.concatenate([[window.begin], end]))[:-1]
    busy = np.maximum(end - np.maximum(start, done), 0.0)
    free, until = done, np.maximum(start, done)
    launched = np.where(np.isnan(kernels.launched[at]), -np.inf, kernels.launched[at])
    if trace.source == "simdp":
        launched = np.full(len(at), -np.inf)
    waits = _waits(trace, free, until, launched)
    idle = np.maximum(until - free - waits, 0.0)
    hooks = np.zeros(len(at))
    if trace.source == "simdp":  # what the cluster charged for hooks is work
        hooks = np.minimum(_annotated(trace, free, until, HOOKS), idle)
        idle = idle - hooks
    if charges.copies:
        busy = np.where([name.startswith(COPIED) for name in names], 0.0, busy)
    if charges.slowdown:
        slowdowns = _slowdowns(trace, charges)
        for slowdown in np.unique(slowdowns).tolist():
            beside = slowdowns == slowdown
            during = Instants.of(trace.collectives.start[beside], trace.collectives.end[beside])
            less = slowdown / (1 + slowdown)
            busy = busy - less * np.minimum(during.within(start, end), busy)
            hooks = hooks - less * np.minimum(during.within(free, until), hooks)
    busy = busy + hooks
    idle = np.where(idle > TOLERANCE, idle, 0.0)
    stalled = np.minimum(_annotated(trace, free, until, (LOADER,)), idle)
    idle = idle - stalled
    known = np.where(np.isfinite(launched), launched, start)
    return StepWork(
        names=names,
        phase=phases(trace, window, names, known),
        busy=busy,
        idle=idle,
        waits=waits,
        nbytes=kernels.nbytes[at],
        launched=known,
        stalled=float(stalled.sum()),
        begin=window.begin,
        end=window.end,
        sent=_sent(trace, window, start, end, trace.source != "simdp", known),
    )


def _waits(trace: RankTrace, free: Floats, until: Floats, launched: Floats) -> Floats:
    """Time that each kernel waits for a collective while the device is free [s]."""
    ends = np.sort(trace.collectives.end)
    waits = np.zeros(len(free))
    if not len(ends):
        return waits
    last = np.searchsorted(ends, until + TOLERANCE, side="right") - 1
    end = np.minimum(np.where(last >= 0, ends[np.maximum(last, 0)], -np.inf), until)
    begin = np.maximum(free, launched)
    there = (end > begin) & (until > free)
    waits[there] = (end - begin)[there]
    return waits


def _annotated(trace: RankTrace, free: Floats, until: Floats, names: tuple[str, ...]) -> Floats:
    """Length that annotations of some names cover of each interval [s]."""
    host = trace.host
    at = (host.kind == ANNOTATION) & host.named(*names)
    return Instants.of(host.start[at], host.end[at]).within(free, until)


def _sent(
    trace: RankTrace,
    window: StepWindow,
    start: Floats,
    end: Floats,
    has_calls: bool,
    launched: Floats,
) -> tuple[StepCollective, ...]:
    """The step's collectives, with their places among its kernels."""
    sent, kernels = trace.collectives, trace.kernels
    collectives, before = [], -np.inf
    for i in window.collectives.tolist():
        kernel = int(sent.kernel[i])
        if sent.names[sent.name[i]] == "barrier":
            continue
        called = has_calls and bool(np.isfinite(sent.enqueued[i]))
        if called:
            after = int((launched < sent.enqueued[i]).sum())
        else:  # without host times: behind the kernels that had ended when it began
            after = int((end <= sent.start[i] + TOLERANCE).sum())
        size = int(sent.group_size[i])
        size = size if size > 0 else trace.world_size or -1
        label = kernels.names[kernels.name[kernel]] if kernel >= 0 else sent.names[sent.name[i]]
        collectives.append(
            StepCollective(
                name=sent.names[sent.name[i]],
                label=label,
                nbytes=float("nan") if (nbytes := sent.nbytes(i, size)) is None else nbytes,
                dtype=str(sent.dtype[i]),
                group=str(sent.group[i]),
                group_size=size,
                after=after,
                queued=not called and abs(float(sent.start[i]) - before) < QUEUED,
                seconds=float(sent.end[i] - sent.start[i]),
                start=float(sent.start[i]),
                end=float(sent.end[i]),
                until=int((start < sent.end[i] - TOLERANCE).sum()),
            )
        )
        before = float(sent.end[i])
    return tuple(collectives)
