"""Splits a trace into steps with their kernels and collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.errors import ScenarioError
from simdp.traces import COMMUNICATION, SYNC, RankTrace

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
