"""Metrics: pure functions of spans and step records; every name of result.json is defined here.

A step's window on a rank reaches from the end of its previous step (or of the setup) to its own
end. Inside it the compute stream is busy or not; what it is not busy with is split by what the
communication stream does meanwhile::

    step_time = compute + update + exposed_comm + wait + other

* ``compute``: forward and backward; ``update``: the optimizer;
* ``exposed_comm``: communication that no compute hides;
* ``wait``: time lost to slower ranks before a collective could begin, that no compute hides;
* ``other``: the rest, such as copies into buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simdp.results.trace import COMPUTE_LANE, SETUP, Trace

Floats = NDArray[np.float64]

ORDER = (
    "step_time_s",
    "throughput_samples_per_s",
    "scaling_efficiency",
    "utilization",
    "compute_s",
    "update_s",
    "comm_s",
    "exposed_comm_s",
    "wait_s",
    "other_s",
    "simulated_s",
    "bytes_sent_per_rank",
    "bucket_bytes",
    "memory_bytes",
    "peak_memory_bytes",
    "fits_memory",
    "loss",
    "loss_per_rank",
    "lr",
    "grad_norm",
    "loss_scale",
    "skipped_steps",
    "replicas_identical",
)
"""The metrics of result.json, in its order; one that does not apply is None."""


class StepNumbers(Protocol):
    """What a step did to the numbers; see `simdp.engine.rank.StepRecord`."""

    @property
    def loss(self) -> float | None:
        """Mean over all that the ranks' losses average."""

    @property
    def loss_per_rank(self) -> list[float | None] | None:
        """Each rank's own mean."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def grad_norm(self) -> float | None:
        """Of rank 0's gradient."""

    @property
    def loss_scale(self) -> float | None:
        """What the losses were multiplied by."""

    @property
    def skipped(self) -> bool | None:
        """Whether the weights were left as they were; None without a loss scale."""


def ordered(found: dict[str, Any]) -> dict[str, Any]:
    """Put metrics in the order of result.json; None for those that do not apply."""
    assert set(found) <= set(ORDER), f"not in the contract: {set(found) - set(ORDER)}"
    return {name: found.get(name) for name in ORDER}


def numbers(records: Sequence[StepNumbers]) -> dict[str, Any]:
    """Metrics of the numbers: a list over steps each, or None without numerics."""
    found: dict[str, Any] = {"lr": [record.lr for record in records]}
    if records and records[0].skipped is not None:
        # Steps count from 1 here, as the k of lr(k).
        found["skipped_steps"] = [k for k, record in enumerate(records, 1) if record.skipped]
    if not records or records[0].loss_per_rank is None:
        return found
    if records[0].loss_scale is not None:
        found["loss_scale"] = [record.loss_scale for record in records]
    return found | {
        "loss": [record.loss for record in records],
        "loss_per_rank": [record.loss_per_rank for record in records],
        "grad_norm": [record.grad_norm for record in records],
    }


def times(trace: Trace, world_size: int, num_steps: int, samples: Sequence[int]) -> dict[str, Any]:
    """Metrics of time: seconds per steady step, averaged over ranks.

    Parameters
    ----------
    trace : Trace
        Every span of the run.
    world_size, num_steps : int
        Ranks and steps. With more than one step the first is warm-up and left out.
    samples : sequence of int
        Samples of all ranks in each step.

    Returns
    -------
    dict
        The metrics from ``step_time_s`` to ``bytes_sent_per_rank``.
    """
    found = per_rank(trace, world_size, num_steps)
    sent = found.pop("bytes_sent")
    mean = {name: float(values.mean()) for name, values in found.items()}
    step_time, steady = mean["step_time_s"], samples[_num_warm_up(num_steps) :]
    return {
        **mean,
        "throughput_samples_per_s": sum(steady) / len(steady) / step_time if step_time else None,
        "utilization": mean["compute_s"] / step_time if step_time else None,
        "simulated_s": float(trace.end.max(initial=0.0)),
        "bytes_sent_per_rank": [_whole(value) for value in sent],
    }


def _num_warm_up(num_steps: int) -> int:
    return 1 if num_steps > 1 else 0


def per_rank(trace: Trace, world_size: int, num_steps: int) -> dict[str, Floats]:
    """What a steady step is made of on each rank.

    Returns
    -------
    dict of str to ndarray, shape `(world_size,)`
        The metrics in seconds from ``step_time_s`` to ``other_s``, and ``bytes_sent``.
    """
    first = _num_warm_up(num_steps)
    steady = num_steps - first
    ends = step_ends(trace, world_size, num_steps)
    step_time = (ends[:, -1] - ends[:, first]) / steady  # column s is the end of step s - 1
    length, hidden = trace.end - trace.start, hidden_time(trace, world_size)

    def total(values: Floats, *activities: str) -> Floats:
        mask = trace.select(*activities) & (trace.step >= first)
        return np.bincount(trace.rank[mask], values[mask], minlength=world_size) / steady

    parts = {
        "compute_s": total(length, "forward", "backward"),
        "update_s": total(length, "update"),
        "exposed_comm_s": _tidy(total(length - hidden, "comm"), step_time),
        "wait_s": _tidy(total(length - hidden, "wait"), step_time),
    }
    return {
        "step_time_s": step_time,
        **parts,
        "comm_s": total(length, "comm"),
        "other_s": _tidy(step_time - sum(parts.values()), step_time),
        "bytes_sent": total(trace.nbytes, "comm"),
    }


def _tidy(values: Floats, step_time: Floats) -> Floats:
    """Drop what rounding leaves of a difference that is nothing."""
    return np.where(values > 1e-12 * step_time, values, 0.0)


def _whole(value: float) -> int | float:
    """Drop what adding up fractions of a byte leaves behind."""
    nearest = round(value)
    return nearest if abs(value - nearest) <= 1e-9 * max(abs(value), 1.0) else value


def step_ends(trace: Trace, world_size: int, num_steps: int) -> Floats:
    """When each rank is done with the setup and with each step.

    Returns
    -------
    ndarray, shape `(world_size, num_steps + 1)`
        Column 0 is the end of the setup [s].
    """
    ends = np.zeros((world_size, num_steps + 1))
    np.maximum.at(ends, (trace.rank, trace.step - SETUP), trace.end)
    return np.maximum.accumulate(ends, axis=1)


def hidden_time(trace: Trace, world_size: int) -> Floats:
    """Part of each span during which its rank's compute stream is busy.

    Returns
    -------
    ndarray, shape `(num_spans,)`
        Seconds; computed for the spans of the communication stream, 0 for others.
    """
    hidden = np.zeros(len(trace))
    bounds = np.searchsorted(trace.rank, np.arange(world_size + 1))
    asked = trace.select("comm", "wait")
    busy = trace.lane == COMPUTE_LANE
    for first, last in pairwise(bounds.tolist()):
        here = slice(first, last)
        mine, work = np.flatnonzero(asked[here]) + first, np.flatnonzero(busy[here]) + first
        if not len(mine) or not len(work):
            continue
        # Busy time until an instant grows linearly inside each span of work and rests between.
        instants = np.column_stack([trace.start[work], trace.end[work]]).ravel()
        grown = np.cumsum(trace.end[work] - trace.start[work])
        until = np.column_stack([grown - (trace.end[work] - trace.start[work]), grown]).ravel()
        hidden[mine] = np.interp(trace.end[mine], instants, until) - np.interp(
            trace.start[mine], instants, until
        )
    return hidden


def scaling_efficiency(
    points: Sequence[tuple[int, dict[str, Any]]],
) -> list[float | None]:
    """Throughput per rank over that of the smallest world size.

    Parameters
    ----------
    points : sequence of (int, dict)
        World size and metrics of each point of a sweep over nothing else.

    Returns
    -------
    list of float or None
        One per point; None where there is no throughput.
    """
    per_rank = [
        metrics["throughput_samples_per_s"] / n if metrics["throughput_samples_per_s"] else None
        for n, metrics in points
    ]
    base = per_rank[min(range(len(points)), key=lambda i: points[i][0])]
    return [value / base if value and base else None for value in per_rank]
