"""Assigns each kernel to a phase of its step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.studies.replay.steps import StepWindow
from simdp.traces import RankTrace
from simdp.traces.intervals import union

FORWARD, BACKWARD, UPDATE = range(3)
"""Forward begins with the step, and takes what is before it; clipping belongs to the update."""

BACKWARD_OPS = "autograd::engine::evaluate_function"

OPTIMIZER = "Optimizer.step#"

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
