"""Finds the collectives of a step that send gradients, and checks torch's bucket rule.

They are the step's all_reduces of floating-point numbers, of more than one element; without any,
its reduce_scatters. A bucket closes as soon as it holds its limit, so that all but the last reach
it: by default 1 MiB for the first, then 25 MiB (torch, reducer.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.results.diagnosis import BucketRow
from simdp.steps.partition import limits
from simdp.strategies.ddp import default_buckets
from simdp.studies.diagnose.expected import ITEMSIZE
from simdp.studies.diagnose.timeline import RankTimeline
from simdp.studies.fits import preset
from simdp.workload.models import PRESETS

FLOATING = ("bfloat16", "float16", "float32", "float64")

GRADIENT_ITEMSIZE = 4
"""Bytes of a gradient by which torch fills buckets; hooks may send fewer."""


class Buckets(NamedTuple):
    """The buckets of a job's usual step.

    Attributes
    ----------
    rows : tuple of BucketRow
        In launch order; none where sizes are not known.
    rule : str or None
        How they compare with torch's rule; None of reduce_scatters, which are of units.
    """

    rows: tuple[BucketRow, ...] = ()
    rule: str | None = None


def buckets_of(lines: Sequence[RankTimeline]) -> Buckets:
    """Find the buckets of a job."""
    for name in ("all_reduce", "reduce_scatter"):
        for line in lines:
            found = _usual(_by_step(line, name))
            if found:
                rows = tuple(BucketRow(*bucket) for bucket in found)
                return Buckets(rows, rule_in_words(rows) if name == "all_reduce" else None)
    return Buckets()


Sent = tuple[tuple[int, str], ...]


def _by_step(line: RankTimeline, name: str) -> list[Sent]:
    """What each step of a rank sends, as elements and dtypes in order."""
    calls = line.trace.collectives
    if name not in calls.names:
        return []
    keep = (calls.name == calls.names.index(name)) & (calls.num_elements > 1)
    at = np.flatnonzero(keep & np.isin(calls.dtype, FLOATING))
    sent = [(int(calls.num_elements[i]), str(calls.dtype[i])) for i in at.tolist()]
    if not len(line.trace.steps):
        return [_period(sent)] if sent else []
    step = calls.step[at]
    return [
        tuple(sent[i] for i in np.flatnonzero(step == place).tolist())
        for place in np.flatnonzero(line.used).tolist()
    ]


def _usual(steps: Sequence[Sent]) -> Sent:
    """What most steps send: the first one of DDP has a single bucket."""
    common = Counter(step for step in steps if step).most_common(1)
    return common[0][0] if common else ()


def _period(sent: Sequence[tuple[int, str]]) -> Sent:
    """The shortest part that repeats up to the end of the whole."""
    for length in range(1, len(sent)):
        if all(sent[i] == sent[i - length] for i in range(length, len(sent))):
            return tuple(sent[:length])
    return tuple(sent)


def rule_in_words(found: Sequence[BucketRow]) -> str | None:
    """Say how buckets compare with torch's rule; None where there are none."""
    if not found or any(row.dtype not in ITEMSIZE for row in found):
        return None
    elements = [row.num_elements for row in found]
    for name in PRESETS.mentioning(f"{sum(elements):,}"):
        if elements == preset_buckets(name):
            return f"as torch's rule makes them of {name} by default"
    sizes = [GRADIENT_ITEMSIZE * count for count in elements]
    first, then = limits(None)
    if len(sizes) < 2:
        return "one bucket: with torch's limits (1 MiB, then 25 MiB) all but small models have more"
    full = sizes[0] >= first and all(size >= then for size in sizes[1:-1])
    if full and sizes[0] < then:
        return "as torch's default limits make them: 1 MiB, then 25 MiB"
    least = min(sizes[:-1]) / 2**20
    if full:
        return f"all but the last hold {least:.3g} MiB or more: as one limit for all makes them"
    if sizes[-1] >= first and all(size >= then for size in sizes[1:-1]):
        return "as torch makes them in reverse: the small one goes last (find_unused_parameters)"
    return (
        "not by torch's default limits (1 MiB, then 25 MiB): the smallest but the last holds "
        f"{least:.3g} MiB"
    )


def preset_buckets(name: str) -> list[int]:
    """Elements of the buckets that torch's DDP makes of a model of the catalogue, once rebuilt."""
    return default_buckets(preset(name), GRADIENT_ITEMSIZE)
