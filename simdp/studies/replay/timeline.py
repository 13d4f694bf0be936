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
from simdp.errors import ScenarioError
from simdp.traces import ANNOTATION, COMMUNICATION, SYNC, RankTrace
from simdp.traces.intervals import covered, union

# Steps --------------------------------------------------------------------------------------------

OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True, eq=False)
class StepWindow:
    """A step of one rank.

    Attributes
    ----------
    kernels, collectives : ndarray, int64
        Indices of what belongs to it.
    begin, end : float
        On the device: from the end of the step before to the end of its own last kernel [s].
    host_begin, host_end : float
        On the host [s].
    """

    kernels: Ints
    collectives: Ints
    begin: float
    end: float
    host_begin: float
    host_end: float


@dataclass(frozen=True)
class Windows:
    """The steps of a trace that a replay goes by.

    Attributes
    ----------
    steps : tuple of Window
        At least one.
    said : tuple of str
        What a report should say of them.
    """

    steps: tuple[StepWindow, ...]
    said: tuple[str, ...]


def windows(trace: RankTrace) -> Windows:
    """Find the steps of a trace.

    The first of several is left out: it warms up, or began before the trace did. Without
    ``ProfilerStep`` they go from one end of the optimizer's annotations to the next, and without
    these all that there is counts as one.

    Raises
    ------
    ScenarioError
        If no step has a kernel.
    """
    kernels = trace.kernels
    busy = ~np.isin(kernels.kind, (COMMUNICATION, SYNC))
    if not busy.any():
        raise ScenarioError(
            [
                f"{trace.path}: has no kernels and no operators, so that there is nothing to "
                "replay; record with activities=[CPU, CUDA]."
            ]
        )
    said = []
    begin, end = trace.steps.start, trace.steps.end
    of_kernel, of_sent = kernels.step, trace.collectives.step
    if not len(begin):
        begin, end = _by_optimizer(trace)
        if len(begin):
            said.append("no ProfilerStep: steps go from one Optimizer.step to the next")
        else:
            begin, end = np.array([-np.inf]), np.array([np.inf])
            said.append("no ProfilerStep and no Optimizer.step: the whole trace counts as one step")
        called = np.where(np.isnan(kernels.launched), kernels.start, kernels.launched)
        of_kernel = _steps_at(called, begin, end)
        sent = trace.collectives
        called = np.where(np.isnan(sent.enqueued), sent.start, sent.enqueued)
        of_sent = _steps_at(called, begin, end)
    found, before = list[StepWindow](), float("nan")
    for k in range(len(begin)):
        mine = np.flatnonzero(of_kernel == k)
        real = mine[busy[mine]]
        if not len(real):
            before = float("nan")
            continue
        last = float(kernels.end[real].max())
        first = float(kernels.start[real].min())
        if before != before:
            before = min(float(begin[k]), first) if np.isfinite(begin[k]) else first
        sent_here = np.flatnonzero(of_sent == k)
        found.append(StepWindow(mine, sent_here, before, last, float(begin[k]), float(end[k])))
        before = last
    if not found:
        raise ScenarioError(
            [f"{trace.path}: no kernel was launched in any of its steps; record whole steps."]
        )
    return Windows(tuple(found[1:] if len(found) > 1 else found), tuple(said))


def _by_optimizer(trace: RankTrace) -> tuple[Floats, Floats]:
    """Begins and ends of steps on the host, from the ends of the optimizer's annotations."""
    host = trace.host
    codes = [i for i, name in enumerate(host.names) if name.startswith(OPTIMIZER)]
    ends = np.sort(host.end[np.isin(host.name, codes)])
    return ends[:-1], ends[1:]


def _steps_at(called: Floats, begin: Floats, end: Floats) -> Ints:
    """The step in which each call was made; -1 for none."""
    place = np.searchsorted(begin, called, side="right") - 1
    inside = (place >= 0) & (called < end[np.maximum(place, 0)])
    return np.where(inside, place, -1)


# Phases -------------------------------------------------------------------------------------------

FORWARD, BACKWARD, UPDATE = range(3)
"""Forward begins with the step, and takes what is before it; clipping belongs to the update."""

BACKWARD_OPS = "autograd::engine::evaluate_function"

JOIN = 1e-3
"""Operators of backward that are not further apart are of one backward pass [s]."""

TAKEN = "Memcpy DtoD gradients"

SAME = 1e-9
"""Instants that differ by less are the same [s]."""

OWN = {"forward": FORWARD, "backward": BACKWARD, "update": UPDATE}
"""First words of kernels' names in trace.json, and last ones in traces by rank."""


def phases(trace: RankTrace, window: StepWindow, names: Sequence[str], launched: Floats) -> Ints:
    """Tell the phase of each kernel of a step.

    Parameters
    ----------
    trace : RankTrace
        Of one rank.
    window : Window
        The step.
    names : sequence of str
        Of its kernels, in the order of their start.
    launched : ndarray, shape `(num_kernels,)`
        When the host launched each [s].

    Returns
    -------
    ndarray, shape `(num_kernels,)`, int64
        What is launched by backward's operators is backward's, what the optimizer's annotation
        holds, or comes behind backward, the update's, and all else forward's.
    """
    if trace.source == "simdp":
        return _carried_on([_own(name) for name in names])
    back = _inside(trace, window, launched, BACKWARD_OPS, JOIN)
    step = _inside(trace, window, launched, OPTIMIZER, 0.0)
    found = np.full(len(names), FORWARD)
    found[back] = BACKWARD
    if back.any():
        behind = launched > launched[back].max()
        found[behind] = UPDATE
    found[step] = UPDATE
    return found


def _own(name: str) -> int:
    """The phase that a name of our own traces says; -1 for none."""
    if name == TAKEN:
        return UPDATE
    first, last = name.split(" ", 1)[0], name.rsplit("_", 1)[-1]
    return OWN.get(first, OWN.get(last, -1))


def _carried_on(own: Sequence[int]) -> Ints:
    """What has no phase of its own goes with what was before it."""
    found, phase = [], FORWARD
    for each in own:
        phase = each if each >= 0 else phase
        found.append(phase)
    return np.array(found, dtype=np.int64)


def _inside(
    trace: RankTrace, window: StepWindow, launched: Floats, prefix: str, join: float
) -> Bools:
    """Which kernels were launched while host events with names of a prefix went on."""
    host = trace.host
    codes = [i for i, name in enumerate(host.names) if name.startswith(prefix)]
    at = np.isin(host.name, codes) & (host.start >= window.host_begin)
    at &= host.start < window.host_end
    start, end = union(host.start[at], host.end[at] + join)
    if not len(start):
        return np.zeros(len(launched), dtype=bool)
    place = np.searchsorted(start, launched + SAME, side="right") - 1
    found: Bools = (place >= 0) & (launched <= end[np.maximum(place, 0)] - join + SAME)
    return found


# Kernels ------------------------------------------------------------------------------------------

ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

TOLERANCE = 2e-9
"""Instants that differ by less are the same [s]."""

QUEUED = 1e-7
"""A collective that begins so soon behind another may have waited for it [s]."""

LOADER = "enumerate(DataLoader)"

COPIED = "Memcpy DtoD"

HOOKS = ("host hook", "host launch")
"""Annotations of our own traces: what the cluster charges for gradients and collectives."""


@dataclass(frozen=True)
class StepCollective:
    """A collective of a step.

    Attributes
    ----------
    name : str
        ``"all_reduce"`` and so on.
    label : str
        Name of its kernel.
    nbytes : float
        Of the whole buffer, as nccl-tests counts; nan unknown.
    dtype : str
        As torch says it; empty unknown.
    group : str
        Name of its process group.
    group_size : int
        Its ranks; -1 unknown.
    after : int
        Kernels of the step that the host had launched before it.
    queued : bool
        Whether it may have been launched earlier: it began when the one before it ended, and
        nothing says when the host called it.
    seconds : float
        How long its kernel lasted: waiting for the last rank and the transfer [s].
    start, end : float
        On the trace's clock [s].
    until : int
        Kernels of the step that began before it ended.
    """

    name: str
    label: str
    nbytes: float
    dtype: str
    group: str
    group_size: int
    after: int
    queued: bool
    seconds: float
    start: float
    end: float
    until: int = 0


@dataclass(frozen=True, eq=False)
class StepWork:
    """What one rank's device did in one step; columns are its kernels, in the order of their start.

    Attributes
    ----------
    names : tuple of str
        What they are called.
    phase : ndarray, int64
        As in `simdp.studies.replay.timeline`.
    busy : ndarray, float64
        How long each kept the device busy that nothing did before [s].
    idle : ndarray, float64
        How long the host let the device wait for it, apart from input [s].
    waits : ndarray, float64
        How long it was idle for a collective that each had to wait for [s].
    nbytes : ndarray, float64
        Of copies; nan for all else [bytes].
    launched : ndarray, float64
        The host's call, else its start [s].
    stalled : float
        How long the device waited because the host waited for its input [s].
    begin, end : float
        Of the step on the device [s].
    sent : tuple of Sent
        In the order of their start.
    """

    names: tuple[str, ...]
    phase: Ints
    busy: Floats
    idle: Floats
    waits: Floats
    nbytes: Floats
    launched: Floats
    stalled: float
    begin: float
    end: float
    sent: tuple[StepCollective, ...]


class ClusterCharges(NamedTuple):
    """What the replay's cluster charges by itself, so that it is taken out of a trace.

    Attributes
    ----------
    copies : bool
        Copies of gradients, as our own traces have them.
    slowdown : float
        The part by which compute takes longer while a collective is under way.
    """

    copies: bool = False
    slowdown: float = 0.0


def step_work(trace: RankTrace, window: StepWindow, charges: ClusterCharges) -> StepWork:
    """Take a step apart.

    Parameters
    ----------
    trace : RankTrace
        Of one rank.
    window : Window
        The step.
    charges : Charges
        What is left out.
    """
    kernels = trace.kernels
    at = window.kernels
    at = at[~np.isin(kernels.kind[at], (COMMUNICATION, SYNC))]
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
        under = union(trace.collectives.start, trace.collectives.end)
        less = charges.slowdown / (1 + charges.slowdown)
        busy = busy - less * np.minimum(covered(*under, end) - covered(*under, start), busy)
        hooks = hooks - less * np.minimum(covered(*under, until) - covered(*under, free), hooks)
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
    """How long each kernel waited for a collective, in the time that the device was free [s]."""
    ends = np.sort(trace.collectives.end)
    found = np.zeros(len(free))
    if not len(ends):
        return found
    last = np.searchsorted(ends, until + TOLERANCE, side="right") - 1
    end = np.minimum(np.where(last >= 0, ends[np.maximum(last, 0)], -np.inf), until)
    begin = np.maximum(free, launched)
    there = (end > begin) & (until > free)
    found[there] = (end - begin)[there]
    return found


def _annotated(trace: RankTrace, free: Floats, until: Floats, names: tuple[str, ...]) -> Floats:
    """How much of each stretch annotations of some names cover [s]."""
    host = trace.host
    codes = [i for i, name in enumerate(host.names) if name.startswith(names)]
    at = (host.kind == ANNOTATION) & np.isin(host.name, codes)
    both = union(host.start[at], host.end[at])
    found: Floats = covered(*both, until) - covered(*both, free)
    return found


def _sent(
    trace: RankTrace, window: StepWindow, start: Floats, end: Floats, told: bool, launched: Floats
) -> tuple[StepCollective, ...]:
    """The step's collectives, with their places among its kernels."""
    sent, kernels = trace.collectives, trace.kernels
    found, before = [], -np.inf
    for i in window.collectives.tolist():
        kernel = int(sent.kernel[i])
        if sent.names[sent.name[i]] == "barrier":
            continue
        called = told and bool(np.isfinite(sent.enqueued[i]))
        if called:
            after = int((launched < sent.enqueued[i]).sum())
        else:  # a host that takes no time, or none: behind what was done when it began
            after = int((end <= sent.start[i] + TOLERANCE).sum())
        label = kernels.names[kernels.name[kernel]] if kernel >= 0 else sent.names[sent.name[i]]
        found.append(
            StepCollective(
                name=sent.names[sent.name[i]],
                label=label,
                nbytes=_nbytes(trace, i),
                dtype=str(sent.dtype[i]),
                group=str(sent.group[i]),
                group_size=_size_of_group(trace, i),
                after=after,
                queued=not called and abs(float(sent.start[i]) - before) < QUEUED,
                seconds=float(sent.end[i] - sent.start[i]),
                start=float(sent.start[i]),
                end=float(sent.end[i]),
                until=int((start < sent.end[i] - TOLERANCE).sum()),
            )
        )
        before = float(sent.end[i])
    return tuple(found)


def _size_of_group(trace: RankTrace, i: int) -> int:
    """Ranks of a collective: all of them, where the trace does not say; -1 unknown."""
    size = int(trace.collectives.group_size[i])
    return size if size > 0 else trace.world_size or -1


def _nbytes(trace: RankTrace, i: int) -> float:
    """Bytes of a collective's whole buffer; nan unknown."""
    sent = trace.collectives
    given, got = int(sent.num_elements[i]), int(sent.out_elements[i])
    size, name = _size_of_group(trace, i), sent.names[sent.name[i]]
    itemsize = ITEMSIZE.get(str(sent.dtype[i]))
    if name == "all_gather":
        whole = got if got >= 0 else given * size if size > 0 else -1
    elif name == "reduce_scatter":
        whole = given if given >= 0 else got * size if size > 0 else -1
    else:
        whole = max(given, got)
    return float("nan") if whole < 0 or itemsize is None else float(whole * itemsize)
