"""Metrics: pure functions of spans and step records; every name of result.json is defined here.

A step's window on a rank reaches from the end of its previous step (or of the setup) to its own
end. Inside it the compute stream is busy or not; what it is not busy with is split by what the
communication stream does meanwhile::

    step_time = compute + update + exposed_comm + wait + other

* ``compute``: forward and backward; ``update``: the optimizer;
* ``exposed_comm``: communication that no compute hides;
* ``wait``: time lost to slower ranks before a collective could begin, that no compute hides;
* ``other``: the rest: copies into buckets, time of the host, and waiting for a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.results.blocks import Block, Stack, is_everyone, stacks
from simdp.results.idle import Idle
from simdp.results.trace import ACTIVITIES, COMM_LANE, FIRST_STREAM_LANE, SETUP, Trace

MANY_SPANS = 2**15
"""Spans looked at together where nothing is summed."""

ORDER = (
    "step_time_s",
    "interval_s",
    "without_stragglers_s",
    "throughput_samples_per_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "model_flops",
    "mfu",
    "hfu",
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


SUMS = {
    "forward": "compute_s",
    "backward": "compute_s",
    "update": "update_s",
    "comm": "exposed_comm_s",
    "wait": "wait_s",
}
"""The part of a step's time that an activity is counted in; what is in none is ``other_s``."""


class StepNumbers(Protocol):
    """What a step did to the numbers; see `simdp.engine.record.StepRecord`."""

    @property
    def loss(self) -> float | None:
        """Mean over all that the ranks' losses average."""

    @property
    def loss_per_rank(self) -> list[float | None] | None:
        """Each rank's own mean."""

    @property
    def lr(self) -> float | None:
        """Learning rate; None where nothing is learned."""

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
    found: dict[str, Any] = {}
    if not records or records[0].lr is not None:
        found["lr"] = [record.lr for record in records]
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


def times(
    trace: Trace,
    world_size: int,
    num_steps: int,
    samples: Sequence[int],
    ends: Floats | None = None,
) -> dict[str, Any]:
    """Metrics of time: seconds per steady step, averaged over ranks.

    Parameters
    ----------
    trace : Trace
        Every span of the run.
    world_size, num_steps : int
        Ranks and steps. With more than one step the first is warm-up and left out.
    samples : sequence of int
        Samples of all ranks in each step.
    ends : ndarray, optional
        As from `step_ends`, where it is known.

    Returns
    -------
    dict
        The metrics from ``step_time_s`` to ``bytes_sent_per_rank``.
    """
    if ends is None:
        ends = step_ends(trace, world_size, num_steps)
    found = _parts(trace, ends)
    sent = found.pop("bytes_sent")
    mean = {name: float(values.mean()) for name, values in found.items()}
    step_time, steady = mean["step_time_s"], samples[num_warm_up(num_steps) :]
    return {
        **mean,
        "throughput_samples_per_s": sum(steady) / len(steady) / step_time if step_time else None,
        "utilization": mean["compute_s"] / step_time if step_time else None,
        "simulated_s": float(ends.max()),
        "bytes_sent_per_rank": _whole(sent),
    }


def steady_step_time(ends: Floats) -> float:
    """``step_time_s`` alone [s]; ``ends`` as from `step_ends`."""
    num_steps = ends.shape[1] - 1
    first = num_warm_up(num_steps)
    steady: Floats = (ends[:, -1] - ends[:, first]) / (num_steps - first)
    return float(steady.mean())


def num_warm_up(num_steps: int) -> int:
    """Count the first steps that a steady step's metrics leave out."""
    return 1 if num_steps > 1 else 0


def per_rank(trace: Trace, world_size: int, num_steps: int) -> dict[str, Floats]:
    """What a steady step is made of on each rank.

    Returns
    -------
    dict of str to ndarray, shape `(world_size,)`
        The metrics in seconds from ``step_time_s`` to ``other_s``, and ``bytes_sent``.
    """
    return _parts(trace, step_ends(trace, world_size, num_steps))


def _parts(trace: Trace, ends: Floats) -> dict[str, Floats]:
    """Go through the spans; ``ends`` as from `step_ends`."""
    world_size, num_steps = ends.shape[0], ends.shape[1] - 1
    first = num_warm_up(num_steps)
    step_time = ends[:, -1] - ends[:, first]  # column s is the end of step s - 1
    sums = {name: np.zeros(world_size) for name in (*SUMS.values(), "comm_s", "bytes_sent")}
    for stack, idle in _with_rests(trace, world_size, _counted(trace, first)):
        activity, ranks = ACTIVITIES[stack.activity], stack.ranks
        length = (stack.end - stack.start).sum(axis=0)
        if activity == "comm":
            _add(sums["comm_s"], ranks, length)
            _add(sums["bytes_sent"], ranks, np.broadcast_to(stack.nbytes, len(ranks)))
        if activity in ("comm", "wait"):
            length = idle.within(ranks, stack.start, stack.end).sum(axis=0)
        _add(sums[SUMS[activity]], ranks, length)
    for name in ("exposed_comm_s", "wait_s"):
        sums[name] = _tidy(sums[name], step_time)
    other = step_time - sum(sums[name] for name in dict.fromkeys(SUMS.values()))
    found = {"step_time_s": step_time, **sums, "other_s": _tidy(other, step_time)}
    return {name: values / (num_steps - first) for name, values in found.items()}


def exposed_by_collective(
    trace: Trace, world_size: int, num_steps: int
) -> dict[tuple[str, int], float]:
    """Split the exposed communication of a steady step by what is communicated.

    Parameters
    ----------
    trace : Trace
        Every span of the run.
    world_size, num_steps : int
        Ranks and steps.

    Returns
    -------
    dict of (str, int) to float
        Seconds, mean over ranks, by collective and number of ranks of its group, the longest first.
        They add up to ``exposed_comm_s`` on one communication stream.
    """
    first = num_warm_up(num_steps)
    groups: dict[tuple[str, int], list[Block]] = {}
    for block in _counted(trace, first):
        if ACTIVITIES[block.activity] == "comm" and block.call is not None:
            key = (block.call.collective, block.call.group_size)
            groups.setdefault(key, []).append(block)
    found, steady = dict[tuple[str, int], float](), num_steps - first
    for key, blocks in groups.items():
        seconds = sum(
            float(idle.within(stack.ranks, stack.start, stack.end).sum())
            for stack, idle in _with_rests(trace, world_size, blocks)
        )
        found[key] = seconds / steady / world_size
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _with_rests(trace: Trace, world_size: int, blocks: list[Block]) -> Iterator[tuple[Stack, Idle]]:
    """What makes up a part of a step's time, and when the ranks have nothing else to do.

    What a second communication stream does while the first is busy too is no further part of it.
    """
    streams = {b.lane for b in blocks if isinstance(b.lane, int) and b.lane >= FIRST_STREAM_LANE}
    idle, busy = Idle(trace, world_size), [COMM_LANE]
    for stack in stacks([b for b in blocks if b.lane not in streams] if streams else blocks):
        yield stack, idle
    for lane in sorted(streams):
        idle = Idle(trace, world_size, busy)
        for stack in stacks([block for block in blocks if block.lane == lane]):
            yield stack, idle
        busy.append(lane)


def _counted(trace: Trace, first: int) -> list[Block]:
    """Blocks of the steps from the first one on that make up a part of a step's time."""
    asked = [ACTIVITIES.index(name) for name in SUMS]
    return [block for block in trace.blocks if block.step >= first and block.activity in asked]


def _add(total: Floats, ranks: Ints, values: Floats) -> None:
    """Add the values of some ranks, which may repeat, to everyone's."""
    if is_everyone(ranks, len(total)):
        total += values
    else:
        total += np.bincount(ranks, values, minlength=len(total))


def _tidy(values: Floats, step_time: Floats) -> Floats:
    """Drop what rounding leaves of a difference that is nothing."""
    return np.where(values > 1e-12 * step_time, values, 0.0)


def _whole(values: Floats) -> list[int | float]:
    """Drop what adding up fractions of a byte leaves behind."""
    nearest = np.rint(values)
    whole = np.abs(values - nearest) <= 1e-9 * np.maximum(np.abs(values), 1.0)
    pairs = zip(np.where(whole, nearest, values).tolist(), whole.tolist(), strict=True)
    return [int(value) if is_whole else value for value, is_whole in pairs]


def step_ends(trace: Trace, world_size: int, num_steps: int) -> Floats:
    """When each rank is done with the setup and with each step.

    Returns
    -------
    ndarray, shape `(world_size, num_steps + 1)`
        Column 0 is the end of the setup [s].
    """
    ends = np.zeros((num_steps + 1, world_size))
    for stack in stacks(trace.blocks, MANY_SPANS):
        steps, heads = np.unique(stack.steps, return_index=True)
        rows, last = steps - SETUP, stack.end
        if len(rows) < len(last):
            last = np.maximum.reduceat(last, heads, axis=0)
        if is_everyone(stack.ranks, world_size):
            ends[rows] = np.maximum(ends[rows], last)
        else:
            np.maximum.at(ends, (rows[:, None], stack.ranks), last)
    return np.maximum.accumulate(ends).T


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
