"""Finds the gradient buckets of a step, in traces and in DDP's logging data.

They are the step's all_reduces of floating-point numbers, of more than one element; without any,
its reduce_scatters. A bucket closes as soon as it holds its limit, so that all but the last reach
it: by default 1 MiB for the first, then 25 MiB (torch, reducer.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.reports.figures import percent, seconds
from simdp.results.diagnosis import BucketRow, Diagnosis, Finding
from simdp.steps.partition import limits
from simdp.strategies.ddp import default_buckets
from simdp.traces import ITEMSIZE, DdpLogging
from simdp.traces.timeline import RankTimeline
from simdp.workload.models import PRESETS, read_model

# Buckets ------------------------------------------------------------------------------------------

FLOATING = ("bfloat16", "float16", "float32", "float64")

GRADIENT_ITEMSIZE = 4  # bytes of a gradient by which torch fills buckets; hooks may send fewer


class Buckets(NamedTuple):
    """The buckets of a job's usual step."""

    rows: tuple[BucketRow, ...] = ()  # in launch order; none where sizes are not known
    # how they compare with torch's rule; None of reduce_scatters, which are of units
    rule: str | None = None


def buckets_of(lines: Sequence[RankTimeline]) -> Buckets:
    """Find the buckets of a job."""
    for name in ("all_reduce", "reduce_scatter"):
        for line in lines:
            usual = _usual(_by_step(line, name))
            if usual:
                rows = tuple(BucketRow(*bucket) for bucket in usual)
                return Buckets(rows, rule_in_words(rows) if name == "all_reduce" else None)
    return Buckets()


Sent = tuple[tuple[int, str], ...]


def _by_step(line: RankTimeline, name: str) -> list[Sent]:
    """Elements and dtypes that each step of a rank sends, in order."""
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
    """The most common step: the first one of DDP has a single bucket."""
    common = Counter(step for step in steps if step).most_common(1)
    return common[0][0] if common else ()


def _period(sent: Sequence[tuple[int, str]]) -> Sent:
    """The shortest part that repeats up to the end of the whole."""
    for length in range(1, len(sent)):
        if all(sent[i] == sent[i - length] for i in range(length, len(sent))):
            return tuple(sent[:length])
    return tuple(sent)


def rule_in_words(buckets: Sequence[BucketRow]) -> str | None:
    """Describe how buckets compare with torch's rule; None without buckets."""
    if not buckets or any(row.dtype not in ITEMSIZE for row in buckets):
        return None
    elements = [row.num_elements for row in buckets]
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
    return default_buckets(read_model(name), GRADIENT_ITEMSIZE)


# DDP's logging data -------------------------------------------------------------------------------


def diagnose_logging(logged: DdpLogging) -> Diagnosis:
    """Diagnose a run by its means.

    The time of a step is forward and backward: what the optimizer, data and the host take is not
    in the data.
    """
    forward, backward = logged.forward_s, logged.backward_s
    comm, hidden = logged.backward_comm_s, logged.overlap_s
    exposed = None if comm is None or hidden is None else max(comm - hidden, 0.0)
    step = None
    if forward is not None and backward is not None:
        step = forward + backward + (exposed or 0.0)
    remarks = [
        "DDP's logging data knows forward, backward and gradients of one rank alone: step times "
        "are without optimizer, data and host, and communication includes waiting for late ranks."
    ]
    if step is None:
        remarks.append("It holds no times: they come with the first sampled iterations.")
    compute = None if step is None else step - (exposed or 0.0)
    buckets = _buckets(logged)
    return Diagnosis(
        source="ddp_logging",
        step_time_s=step,
        compute_s=compute,
        exposed_comm_s=exposed,
        hidden_comm_s=hidden,
        num_ranks=1,
        buckets=buckets,
        verdict=_verdict(step, compute, exposed),
        world_size=logged.world_size,
        num_steps=logged.iteration or 0,
        steps_are="forward and backward",
        bucket_rule=rule_in_words(buckets),
        remarks=tuple(remarks),
    )


def _buckets(logged: DdpLogging) -> tuple[BucketRow, ...]:
    dtype = logged.dtypes[0] if len(logged.dtypes) == 1 else ""
    item = ITEMSIZE.get(dtype)
    if item is None:
        return ()
    return tuple(BucketRow(nbytes // item, dtype) for nbytes in logged.bucket_nbytes)


def _verdict(
    step: float | None, compute: float | None, exposed: float | None
) -> tuple[Finding, ...]:
    if not step or compute is None or exposed is None:
        return ()
    findings = [
        Finding(
            "exposed_communication",
            exposed / step,
            f"gradients travel in the open for {seconds(exposed)} of {seconds(step)} of forward "
            f"and backward ({percent(exposed / step)}); whether links or late ranks are to blame "
            "takes traces.",
            seconds=exposed,
        ),
        Finding(
            "compute_bound",
            compute / step,
            f"forward and backward compute for {seconds(compute)} of {seconds(step)} "
            f"({percent(compute / step)}).",
            seconds=compute,
        ),
    ]
    return tuple(findings if exposed >= WORTH * step else findings[::-1])


WORTH = 0.1  # as in `simdp.studies.diagnose.verdict`
