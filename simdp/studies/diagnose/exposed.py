"""Divides exposed transfers by what would avoid them: unused parameters, and small collectives.

DDP with ``find_unused_parameters`` searches the graph in every step, sends a bitmap of the
parameters that were used, and the gradients of those that were not, which are zeros. Gradients that
a trace sends and does not accumulate are these.

Collectives below the size of DDP's first bucket last as long as their latency, whatever they send.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Ints
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.host import SEARCHING
from simdp.traces.timeline import RankTimeline

SMALL = 2**20  # collectives below it are small: the first bucket of DDP [bytes]
MANY = 16  # small collectives of a step from which on they are many
MOSTLY = 0.5  # fraction of a step's collectives that are small if these count
GRADIENT = "torch::autograd::AccumulateGrad"  # operator that accumulates a gradient
REDUCED = ("float64", "float32", "float16", "bfloat16")  # types of gradients


class Avoidable(NamedTuple):
    """Parts of the time that a rank's collectives transfer, 0 to 1."""

    unused: float  # bitmap and gradients of unused parameters
    small: float  # small collectives, where they are many
    num_small: float  # small collectives of a step; 0 if they are not many
    small_nbytes: float  # mean size of these [bytes]
    small_name: str  # their usual collective; empty if they are not many
    # gradients of a step that are sent, and those that are accumulated: elements; None if unknown
    sent: float | None
    accumulated: float | None
    searches: bool  # whether DDP searches for unused parameters


def avoidable(case: Case, place: int) -> Avoidable:
    """Divide the transfers of a rank.

    Parameters
    ----------
    case : Case
        The job's traces.
    place : int
        Place of the rank.
    """
    line, calls, sizes = case.lines[place], case.calls[place], case.sizes[place]
    columns = line.trace.collectives
    at = np.array([call.place for call in calls], dtype=np.int64)
    lasted = np.array([call.end - call.middle for call in calls])
    total = float(lasted.sum())
    searches = SEARCHING in line.trace.host.names
    if not len(at) or total <= 0:
        return Avoidable(0.0, 0.0, 0.0, 0.0, "", None, None, searches)
    names, dtypes = np.array(columns.names)[columns.name[at]], columns.dtype[at]
    nbytes = np.array([sizes[i].nbytes if i in sizes else np.inf for i in range(len(calls))])
    reduces: Bools = (names == "all_reduce") & np.isin(dtypes, REDUCED)
    bitmap: Bools = (names == "all_reduce") & (dtypes == "int32") & searches
    sent, accumulated = _gradients(line, at[reduces])
    unused = float(lasted[bitmap].sum())
    if searches and sent and accumulated is not None:
        unused += max(1 - accumulated / sent, 0.0) * float(lasted[reduces].sum())
    small: Bools = (nbytes < SMALL) & ~bitmap
    inside = columns.step[at] >= 0 if case.has_steps else np.ones(len(at), dtype=bool)
    number = float((small & inside).sum()) / max(line.num_steps, 1)
    if number < MANY or (small & inside).sum() < MOSTLY * inside.sum():
        return Avoidable(unused / total, 0.0, 0.0, 0.0, "", sent, accumulated, searches)
    usual = max(sorted(set(names[small].tolist())), key=names[small].tolist().count)
    share = min(float(lasted[small].sum()) / total, 1 - unused / total)
    mean = float(nbytes[small].mean())
    return Avoidable(unused / total, share, number, mean, usual, sent, accumulated, searches)


def _gradients(line: RankTimeline, reduced: Ints) -> tuple[float | None, float | None]:
    """Elements that a step sends to be added, and gradients that it accumulates."""
    trace = line.trace
    host, columns = trace.host, trace.collectives
    at = host.named(GRADIENT) & (host.elements >= 0)
    if not at.any() or not len(reduced):
        return None, None
    number = columns.num_elements[reduced]
    if len(trace.steps):
        at &= host.step >= 0
        number = number[columns.step[reduced] >= 0]
    steps = max(line.num_steps, 1)
    return float(number[number > 0].sum()) / steps, float(host.elements[at].sum()) / steps
