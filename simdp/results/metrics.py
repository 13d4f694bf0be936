"""Metrics of a run, derived from its spans.

A compute stream is nearly always busy, and its gaps are the same for all ranks: where a script
waits. Therefore gaps are stored, not spans of work: few arrays over all ranks.

A step's window on a rank is from the end of its previous step (or of the setup) to its end. Time
without compute is split by the activity of the communication stream::

    step_time = compute + update + exposed_comm + wait + other

* ``compute``: forward and backward; ``update``: the optimizer;
* ``exposed_comm``: communication not overlapped with compute;
* ``wait``: time lost to slower ranks before a collective could begin, not overlapped with compute;
* ``other``: the rest: copies into buckets, time of the host, and waiting for a batch.

A gradient over b samples has noise with a mean square of ``S / b``, where S is the trace of the
covariance of single samples' gradients, so that ``E |g_b|^2 = |G|^2 + S / b``. Ranks' own gradients
are of a small batch b and their mean is of a large one B; two such squares give ``|G|^2`` and S.
Their ratio, the noise scale, is about the batch above which larger ones cost more samples than they
save steps.

References
----------
McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training", arXiv 1812.06162,
section 2.2 and appendix A.1: B_simple.

The work of a step is the busy time of a rank's compute stream. The excess of the slowest rank over
the median is the minimum wait of half of the others, if ranks synchronise in each step.

A device is busy, waits in a collective (its kernel spins), or is idle; its node has constant
power::

    energy = busy W x busy s + waiting W x waiting s + rest W x rest s + node W x all of them
    cost   = price x all of them
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from math import isnan, nan
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_type_hints

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.results.trace import (
    ACTIVITIES,
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_STREAM_LANE,
    SETUP,
    SpanBlock,
    Stack,
    Trace,
    columns_of,
    is_everyone,
    stacks,
)


class Idle:
    """The gaps between the spans of work of each rank, including those before and after.

    A rank is also busy on the lanes ``beside``.
    """

    def __init__(self, trace: Trace, world_size: int, beside: Sequence[int] = ()) -> None:
        lanes = (COMPUTE_LANE, *beside)
        work = [b for b in trace.blocks if isinstance(b.lane, int) and b.lane in lanes]
        gaps, in_turn = _gaps(work, world_size) if not beside else ([], False)
        self._gaps = gaps if in_turn else _gaps_by_rank(work, world_size)
        self._bound()

    def _bound(self) -> None:
        """Compute bounds that exclude most gaps.

        No gap before the i-th ends after the i-th latest end; none after it begins before the i-th
        earliest begin.
        """
        begins, ends = [], []
        for begin, end in self._gaps:
            real = end > begin
            begins.append(float(begin[real].min()))
            ends.append(float(end[real].max()))
        self._latest_end = list(accumulate(ends, max))
        self._earliest_begin = list(accumulate(reversed(begins), min))[::-1]

    def within(self, ranks: Ints, start: Floats, end: Floats) -> Floats:
        """Return idle seconds of the compute streams of some ranks in intervals [s].

        ``start`` and ``end`` have the shape `(..., num_ranks)`, like the result.
        """
        idle = np.zeros(start.shape)
        first = bisect_right(self._latest_end, float(start.min()))
        last = bisect_left(self._earliest_begin, float(end.max()))
        everyone = is_everyone(ranks, len(self._gaps[0][0]))
        for begin, until in self._gaps[first:last]:
            if not everyone:
                begin, until = begin[ranks], until[ranks]
            idle += np.maximum(np.minimum(end, until) - np.maximum(start, begin), 0.0)
        return idle


def _gaps_by_rank(work: list[SpanBlock], world_size: int) -> list[tuple[Floats, Floats]]:
    """Return gaps of ranks with spans of work in any order, which may overlap.

    The first of each rank, then the second of each, and so on; ranks without further gaps get an
    empty one after all others.
    """
    columns = columns_of(work)
    columns = columns.at(np.lexsort([columns.start, columns.rank]))
    rank, start, end = columns.rank, columns.start, columns.end
    cuts = np.searchsorted(rank, np.arange(world_size + 1)).tolist()
    gaps_of_ranks = []
    for first, last in pairwise(cuts):
        done = np.maximum.accumulate(end[first:last])
        begin, until = np.append(-np.inf, done), np.append(start[first:last], np.inf)
        rests = until > begin
        gaps_of_ranks.append((begin[rests], until[rests]))
    ends = np.full((2, max(len(begin) for begin, _ in gaps_of_ranks), world_size), np.inf)
    for rank_number, gaps in enumerate(gaps_of_ranks):
        ends[:, : len(gaps[0]), rank_number] = gaps
    return [(begin, until) for begin, until in zip(*ends, strict=True)]


def _spread(values: Floats, ranks: Ints, others: Floats) -> Floats:
    """Set the values of some ranks, in ascending order, and keep those of all others."""
    if len(ranks) == len(others):
        return values
    spread = others.copy()
    spread[ranks] = values
    return spread


def _gaps(work: list[SpanBlock], world_size: int) -> tuple[list[tuple[Floats, Floats]], bool]:
    """Return the gaps between blocks of work, and whether they are valid.

    They are if the blocks are in order of time and the ranks of each ascend. A gap of zero length
    means that a rank has none there.
    """
    gaps, in_turn = [], True
    last = np.full(world_size, -np.inf)
    for block in work:
        in_turn &= bool((block.ranks[1:] > block.ranks[:-1]).all())
        if block.start is not last:  # mostly, work begins with the very array that ended the last
            until = _spread(block.start, block.ranks, last)
            in_turn &= bool((until >= last).all())
            if (until > last).any():
                gaps.append((last, until))
        last = _spread(block.end, block.ranks, last)
    gaps.append((last, np.full(world_size, np.inf)))
    return gaps, in_turn


# Metrics ------------------------------------------------------------------------------------------

MANY_SPANS = 2**15  # spans processed together if nothing is summed


Unit = Literal["s", "bytes", "USD", "kWh", "per_s", "share", "number"]


class Label(NamedTuple):
    """Unit and names of a metric, for tables, pages and files."""

    unit: Unit
    title: str  # of a row
    short: str = ""  # of a column; empty: the title
    reduced: Literal["", "largest", "last"] = ""  # value of a list that stands for it in one cell

    @property
    def head(self) -> str:
        """Head of a column."""
        return self.short or self.title


Number = float | None  # None if it does not apply
PerStep = list[float | None] | None


@dataclass(frozen=True, eq=False)
class Metrics(Mapping[str, Any]):
    """Metrics of a run, in the order of result.json; a mapping of them by name, too.

    One line declares a metric: its name, type, unit, title and, if it is
    another, head of a column. Times are seconds of a steady
    step, mean over ranks; NaN if nothing was timed. All others are None or empty if they do not
    apply. `LABELS` lists unit and names of each.
    """

    step_time_s: Annotated[float, Label("s", "step time", "step")] = nan
    interval_s: Annotated[list[float] | None, Label("s", "90 % interval of a step", "90 %")] = None
    without_stragglers_s: Annotated[Number, Label("s", "step without stragglers")] = None
    throughput_samples_per_s: Annotated[
        Number, Label("per_s", "samples per second", "samples/s")
    ] = None
    tokens_per_s: Annotated[Number, Label("per_s", "tokens per second", "tokens/s")] = None
    tokens_per_s_per_gpu: Annotated[Number, Label("per_s", "tokens per GPU", "tok/s/GPU")] = None
    model_flops: Annotated[Number, Label("number", "FLOPs of a step")] = None
    mfu: Annotated[Number, Label("share", "MFU")] = None
    hfu: Annotated[Number, Label("share", "HFU")] = None
    scaling_efficiency: Annotated[Number, Label("share", "scaling efficiency", "eff.")] = None
    utilization: Annotated[Number, Label("share", "utilization")] = None
    compute_s: Annotated[float, Label("s", "compute")] = nan
    update_s: Annotated[float, Label("s", "update")] = nan
    comm_s: Annotated[float, Label("s", "communication in all")] = nan
    exposed_comm_s: Annotated[float, Label("s", "exposed comm", "exposed")] = nan
    wait_s: Annotated[float, Label("s", "wait")] = nan
    other_s: Annotated[float, Label("s", "other")] = nan
    simulated_s: Annotated[float, Label("s", "simulated")] = nan
    bytes_sent_per_rank: Annotated[
        list[float], Label("bytes", "sent per rank and step", "sent", reduced="largest")
    ] = field(default_factory=list)
    bucket_bytes: Annotated[list[int] | None, Label("bytes", "buckets")] = None
    memory_bytes: Annotated[dict[str, int], Label("bytes", "memory")] = field(default_factory=dict)
    peak_memory_bytes: Annotated[
        list[int], Label("bytes", "peak memory", "memory", reduced="largest")
    ] = field(default_factory=list)
    reserved_memory_bytes: Annotated[Number, Label("bytes", "reserved memory")] = None
    fits_memory: Annotated[bool | None, Label("number", "fits")] = None
    loss: Annotated[PerStep, Label("number", "last loss", reduced="last")] = None
    loss_per_rank: Annotated[list[PerStep] | None, Label("number", "loss by rank")] = None
    lr: Annotated[PerStep, Label("number", "learning rate", reduced="last")] = None
    grad_norm: Annotated[PerStep, Label("number", "gradient norm", reduced="last")] = None
    loss_scale: Annotated[PerStep, Label("number", "loss scale", reduced="last")] = None
    skipped_steps: Annotated[list[int] | None, Label("number", "skipped steps", "skipped")] = None
    replicas_identical: Annotated[bool | None, Label("number", "replicas identical")] = None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Metrics:
        """Read the metrics of result.json; names of other versions are left out."""
        return cls(**{k: v for k, v in plain.items() if k in LABELS and v is not None})

    def __getitem__(self, name: str) -> Any:
        if name not in LABELS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(LABELS)

    def __len__(self) -> int:
        return len(LABELS)

    @property
    def has_times(self) -> bool:
        """Whether the steps were timed."""
        return not isnan(self.step_time_s)

    @property
    def busy_s(self) -> float:
        """Part of a step in which a device computes [s]."""
        return self.compute_s + self.update_s

    @property
    def waiting_s(self) -> float:
        """Part of a step in which a device waits in a collective [s]."""
        return self.exposed_comm_s + self.wait_s

    @property
    def last_loss(self) -> float | None:
        """The last step's loss; None without numbers."""
        return self.loss[-1] if self.loss else None


LABELS: dict[str, Label] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Metrics, include_extras=True).items()
}
"""Unit and names of each metric, in the order of result.json."""

PARTS = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
"""Metrics that add up to the step time."""
PART_TITLES = {name: LABELS[name].title for name in PARTS}
STEP_HEADS = {name: LABELS[name].head for name in ("step_time_s", *PARTS)}
"""Heads of columns of a step and its parts."""

SUMS = {
    "forward": "compute_s",
    "backward": "compute_s",
    "update": "update_s",
    "comm": "exposed_comm_s",
    "wait": "wait_s",
}
"""The part of a step's time of each activity; all others are ``other_s``."""


class StepRecord(NamedTuple):
    """Numerical results of a step; None without numerics."""

    samples: int
    """Of all ranks."""
    loss: float | None
    """Mean over all items of the ranks' losses."""
    loss_per_rank: list[float | None] | None
    """Each rank's own mean."""
    lr: float | None
    """Learning rate of the optimizer, without parameter groups; None in inference."""
    grad_norm: float | None
    """Of the gradient of the first participating rank, unscaled and before clipping."""
    loss_scale: float | None
    """Factor on the losses of this step."""
    skipped: bool | None
    """Whether inf or nan prevented the update; None without a loss scale."""
    squares: Squares | None = None
    """Squared norms of the ranks' gradients, if requested."""


def mean_losses(
    losses: Sequence[Floats], counts: Floats, adds: bool = False
) -> tuple[float | None, list[float | None]]:
    """Join the losses of micro-steps; return the mean or sum over all ranks, and of each.

    ``losses`` are nan on a rank without samples; ``counts``, of shape `(num_micro, world_size)`,
    are the numbers of items that each averages; ``adds``: losses are sums.
    """
    totals = (np.where(counts > 0, losses, 0.0) * (1.0 if adds else counts)).sum(axis=0)
    per_rank = counts.sum(axis=0)
    if adds:
        return (float(totals.sum()) if per_rank.sum() else None), [
            float(total) if count else None for total, count in zip(totals, per_rank, strict=True)
        ]
    mean = float(totals.sum() / per_rank.sum()) if per_rank.sum() else None
    return mean, [
        float(total / count) if count else None
        for total, count in zip(totals, per_rank, strict=True)
    ]


def with_numbers(metrics: Metrics, records: Sequence[StepRecord]) -> Metrics:
    """Fill in the numeric metrics: a list over steps each, or None without numerics."""
    if not records:
        return replace(metrics, lr=[])
    first = records[0]
    if first.lr is not None:
        metrics = replace(metrics, lr=[record.lr for record in records])
    if first.skipped is not None:
        # Steps count from 1 here, as the k of lr(k).
        skipped = [k for k, record in enumerate(records, 1) if record.skipped]
        metrics = replace(metrics, skipped_steps=skipped)
    if first.loss_per_rank is None:
        return metrics
    if first.loss_scale is not None:
        metrics = replace(metrics, loss_scale=[record.loss_scale for record in records])
    return replace(
        metrics,
        loss=[record.loss for record in records],
        loss_per_rank=[record.loss_per_rank for record in records],
        grad_norm=[record.grad_norm for record in records],
    )


def times(
    trace: Trace,
    world_size: int,
    num_steps: int,
    samples: Sequence[int],
    ends: Floats | None = None,
) -> Metrics:
    """Return metrics of time: seconds per steady step, averaged over ranks.

    Parameters
    ----------
    trace : Trace
        Every span of the run.
    world_size, num_steps : int
        Ranks and steps. With more than one step the first is warm-up and left out.
    samples : sequence of int
        Samples of all ranks in each step.
    ends : ndarray, optional
        As from `step_ends`, if known.

    Returns
    -------
    Metrics
        Those from ``step_time_s`` to ``bytes_sent_per_rank``.
    """
    if ends is None:
        ends = step_ends(trace, world_size, num_steps)
    by_rank, steady = _parts(trace, ends), samples[num_warm_up(num_steps) :]
    step_time, compute, update, comm, exposed, wait, other = (
        float(values.mean()) for values in by_rank[:-1]
    )
    return Metrics(
        step_time_s=step_time,
        throughput_samples_per_s=sum(steady) / len(steady) / step_time if step_time else None,
        utilization=compute / step_time if step_time else None,
        compute_s=compute,
        update_s=update,
        comm_s=comm,
        exposed_comm_s=exposed,
        wait_s=wait,
        other_s=other,
        simulated_s=float(ends.max()),
        bytes_sent_per_rank=_whole(by_rank.bytes_sent),
    )


def steady_step_time(ends: Floats) -> float:
    """Return only ``step_time_s`` [s]; ``ends`` as from `step_ends`."""
    num_steps = ends.shape[1] - 1
    first = num_warm_up(num_steps)
    steady: Floats = (ends[:, -1] - ends[:, first]) / (num_steps - first)
    return float(steady.mean())


def num_warm_up(num_steps: int) -> int:
    """Return the number of first steps that are left out of a steady step's metrics."""
    return 1 if num_steps > 1 else 0


class RankParts(NamedTuple):
    """Parts of a steady step on each rank, each of shape `(world_size,)`."""

    # seconds, as the metrics of these names
    step_time_s: Floats
    compute_s: Floats
    update_s: Floats
    comm_s: Floats
    exposed_comm_s: Floats
    wait_s: Floats
    other_s: Floats
    bytes_sent: Floats


def per_rank(trace: Trace, world_size: int, num_steps: int) -> RankParts:
    """Return the parts of a steady step on each rank."""
    return _parts(trace, step_ends(trace, world_size, num_steps))


def _parts(trace: Trace, ends: Floats) -> RankParts:
    """Sum the parts of steps over the spans; ``ends`` as from `step_ends`."""
    world_size, num_steps = ends.shape[0], ends.shape[1] - 1
    first = num_warm_up(num_steps)
    step_time = ends[:, -1] - ends[:, first]  # column s is the end of step s - 1
    sums = {name: np.zeros(world_size) for name in SUMS.values()}
    comm, sent = np.zeros(world_size), np.zeros(world_size)
    for stack, idle in _with_rests(trace, world_size, _counted(trace, first)):
        activity, ranks = ACTIVITIES[stack.activity], stack.ranks
        length = (stack.end - stack.start).sum(axis=0)
        if activity == "comm":
            _add(comm, ranks, length)
            _add(sent, ranks, np.broadcast_to(stack.nbytes, len(ranks)))
        if activity in ("comm", "wait"):
            length = idle.within(ranks, stack.start, stack.end).sum(axis=0)
        _add(sums[SUMS[activity]], ranks, length)
    compute, update, exposed, wait = sums.values()
    exposed, wait = _tidy(exposed, step_time), _tidy(wait, step_time)
    other = _tidy(step_time - sum((compute, update, exposed, wait)), step_time)
    parts = (step_time, compute, update, comm, exposed, wait, other, sent)
    return RankParts(*(values / (num_steps - first) for values in parts))


def exposed_by_collective(
    trace: Trace, world_size: int, num_steps: int
) -> dict[tuple[str, int], float]:
    """Split the exposed communication of a steady step by collective.

    Returns seconds, mean over ranks, by collective and group size, the longest first. They add up
    to ``exposed_comm_s`` on one communication stream.
    """
    first = num_warm_up(num_steps)
    groups: dict[tuple[str, int], list[SpanBlock]] = {}
    for block in _counted(trace, first):
        if ACTIVITIES[block.activity] == "comm" and block.call is not None:
            key = (block.call.collective, block.call.group_size)
            groups.setdefault(key, []).append(block)
    by_collective, steady = dict[tuple[str, int], float](), num_steps - first
    for key, blocks in groups.items():
        seconds = sum(
            float(idle.within(stack.ranks, stack.start, stack.end).sum())
            for stack, idle in _with_rests(trace, world_size, blocks)
        )
        by_collective[key] = seconds / steady / world_size
    return dict(sorted(by_collective.items(), key=lambda pair: -pair[1]))


def _with_rests(
    trace: Trace, world_size: int, blocks: list[SpanBlock]
) -> Iterator[tuple[Stack, Idle]]:
    """Yield parts of a step's time, and the idle gaps of the ranks.

    Work of a second communication stream while the first is busy counts once.
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


def _counted(trace: Trace, first: int) -> list[SpanBlock]:
    """Return blocks from step ``first`` on that count as a part of a step's time."""
    chosen = [ACTIVITIES.index(name) for name in SUMS]
    return [block for block in trace.blocks if block.step >= first and block.activity in chosen]


def _add(total: Floats, ranks: Ints, values: Floats) -> None:
    """Add the values of some ranks, which may repeat, to the totals."""
    if is_everyone(ranks, len(total)):
        total += values
    else:
        total += np.bincount(ranks, values, minlength=len(total))


def _tidy(values: Floats, step_time: Floats) -> Floats:
    """Set differences of the size of rounding errors to zero."""
    return np.where(values > 1e-12 * step_time, values, 0.0)


def _whole(values: Floats) -> list[int | float]:
    """Round sums of fractions of a byte."""
    nearest = np.rint(values)
    whole = np.abs(values - nearest) <= 1e-9 * np.maximum(np.abs(values), 1.0)
    pairs = zip(np.where(whole, nearest, values).tolist(), whole.tolist(), strict=True)
    return [int(value) if is_whole else value for value, is_whole in pairs]


def step_ends(trace: Trace, world_size: int, num_steps: int) -> Floats:
    """Return when each rank ends the setup and each step [s], shape `(world_size, num_steps + 1)`.

    Column 0 is the end of the setup.
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
    points: Sequence[tuple[int, Metrics]],
) -> list[float | None]:
    """Return the throughput per rank relative to the smallest world size, one value per point.

    ``points`` are world size and metrics of each point of a sweep of the world size; the result is
    None without throughput.
    """
    per_rank = [
        metrics.throughput_samples_per_s / n if metrics.throughput_samples_per_s else None
        for n, metrics in points
    ]
    base = per_rank[min(range(len(points)), key=lambda i: points[i][0])]
    return [value / base if value and base else None for value in per_rank]


class Squares(NamedTuple):
    """Squared norms of the gradients of a step."""

    # small, large: of a rank's own gradient, mean over ranks; and of the mean of all
    small: float
    large: float
    batch: int  # samples of each
    global_batch: int  # samples of each

    @property
    def signal(self) -> float:
        """Estimated squared gradient without noise, |G|^2; may be negative by chance."""
        b, n = self.batch, self.global_batch
        return (n * self.large - b * self.small) / (n - b)

    @property
    def noise(self) -> float:
        """Trace of the covariance of single samples' gradients, S; may be negative by chance."""
        return (self.small - self.large) / (1 / self.batch - 1 / self.global_batch)


def noise_scale(steps: Sequence[Squares]) -> dict[str, Any] | None:
    """Return the gradient noise scale, averaged over steps, since single steps are mostly chance.

    Returns
    -------
    dict or None
        ``steps``; ``signal`` and ``noise``, their means; ``noise_scale``, the ratio [samples],
        about the critical batch B_crit; and for the largest batch B: ``samples``, relative to the
        minimum, ``1 + B / B_crit``, and ``steps_taken``, relative to the minimum, ``1 + B_crit /
        B``. The last three are None if the estimated signal is not positive. None without steps.
    """
    if not steps:
        return None
    signal = float(np.mean([step.signal for step in steps]))
    noise = float(np.mean([step.noise for step in steps]))
    scales: dict[str, Any] = {"steps": len(steps), "signal": signal, "noise": noise}
    scale = noise / signal if signal > 0 and noise > 0 else None
    batch = max(step.global_batch for step in steps)
    more = None if scale is None else 1 + batch / scale
    longer = None if scale is None else 1 + scale / batch
    return scales | {"noise_scale": scale, "samples": more, "steps_taken": longer}


WAIT = ACTIVITIES.index("wait")

ALIKE = 1e-9  # relative excess over the median above which a rank counts as slow


def busy_times(blocks: Iterable[SpanBlock], world_size: int, num_steps: int) -> Floats:
    """Return busy times of each rank's compute stream, shape `(num_steps, world_size)` [s]."""
    busy = np.zeros((num_steps, world_size))
    for block in blocks:
        on_compute = isinstance(block.lane, int) and block.lane == COMPUTE_LANE
        if on_compute and block.activity != WAIT and 0 <= block.step < num_steps:
            length = block.end - block.start
            busy[block.step] += np.bincount(block.ranks, length, minlength=world_size)
    return busy


class SlowestRank(NamedTuple):
    """A rank that was the slowest of some steady steps."""

    rank: int
    node: int
    steps: int  # how many
    seconds: float  # its excess over the median, mean over all steady steps


def slowest(busy: Floats, local_size: int) -> list[dict[str, Any]]:
    """Return the fields of each `SlowestRank`, the most expensive one first.

    ``busy`` is as from `busy_times`.
    """
    steady = busy[num_warm_up(len(busy)) :]
    if not steady.size:
        return []
    worst, median = steady.argmax(axis=1), np.median(steady, axis=1)
    beyond = steady.max(axis=1) - median
    counts = beyond > ALIKE * median
    ranks = [
        SlowestRank(
            rank,
            rank // local_size,
            int((worst[counts] == rank).sum()),
            float(beyond[counts & (worst == rank)].sum()) / len(steady),
        )
        for rank in np.unique(worst[counts]).tolist()
    ]
    ranks.sort(key=lambda slow_rank: (-slow_rank.seconds, slow_rank.rank))
    return [slow_rank._asdict() for slow_rank in ranks]


# Money --------------------------------------------------------------------------------------------

N = TypeVar("N", float, Floats)

JOULES = 3.6e6  # joules per kWh

MILLION = 1e6

FULL = 0.9  # share of its memory from which a device counts as full


def limit_of(metrics: Metrics, memory_share: float) -> str:
    """Return the largest part of a step, or ``memory`` if the fullest device is full.

    ``memory_share`` is its peak over its capacity.
    """
    if memory_share >= FULL:
        return "memory"
    parts = {
        "compute": metrics.busy_s,
        "communication": metrics.exposed_comm_s,
        "waiting": metrics.wait_s,
        "other": metrics.other_s,
    }
    return max(parts, key=lambda name: parts[name])


class Rates(NamedTuple):
    """Price and power of a whole running cluster."""

    price: float | None = None  # of all devices [USD/s]; None if unknown
    # busy, waiting, rest: power of all devices while computing, waiting in a collective, or idle
    # [W]; None if unknown
    busy: float | None = None
    waiting: float | None = None
    rest: float | None = None
    node: float = 0.0  # power of the nodes in addition to their devices [W]
    # bounds of `waiting` if it was not given [W]
    waiting_between: tuple[float, float] | None = None

    def scaled(self, share: float) -> Rates:
        """Return the rates of a part of the cluster, or of several like it."""
        rates = (None if value is None else share * value for value in self[:4])
        price, busy, waiting, rest = rates
        ends = self.waiting_between
        between = None if ends is None else (share * ends[0], share * ends[1])
        return Rates(price, busy, waiting, rest, share * self.node, between)

    @property
    def is_known(self) -> bool:
        """Whether any rate is known."""
        return self.price is not None or self.has_power

    @property
    def has_power(self) -> bool:
        """Whether energy is known."""
        return None not in (self.busy, self.waiting, self.rest)


class Bill(NamedTuple, Generic[N]):
    """Cost and energy of a time."""

    # cost_usd, energy_kwh: None if the rates are unknown
    cost_usd: N | None
    energy_kwh: N | None


def bill(rates: Rates, busy: N, waiting: N, rest: N) -> Bill[N]:
    """Return cost and energy of a time that devices spend in three states.

    Parameters
    ----------
    rates : Rates
        Of the devices that are up and paid for.
    busy, waiting, rest : float or ndarray
        Times that a device is busy, waits in a collective, and is idle, mean over devices [s]. It
        is idle while down after a failure and during a checkpoint.
    """
    total = busy + waiting + rest
    cost = None if rates.price is None else rates.price * total
    if rates.busy is None or rates.waiting is None or rates.rest is None:
        return Bill(cost, None)
    joules = rates.busy * busy + rates.waiting * waiting + rates.rest * rest + rates.node * total
    return Bill(cost, joules / JOULES)


def energy_range(rates: Rates, busy: N, waiting: N, rest: N) -> tuple[N, N] | None:
    """Return energy with the bounds of a waiting device's power [kWh]; arguments as of `bill`.

    None if the power of waiting was given or is unknown.
    """
    if rates.waiting_between is None:
        return None
    low, high = (
        bill(rates._replace(waiting=watts), busy, waiting, rest).energy_kwh
        for watts in rates.waiting_between
    )
    return None if low is None or high is None else (low, high)


def step_bill(rates: Rates, metrics: Metrics) -> dict[str, dict[str, float | None]]:
    """Return cost and energy of a steady step, and of a million samples or tokens.

    Parameters
    ----------
    rates : Rates
        Of the cluster.
    metrics : Metrics
        Times are means over ranks, so that with different devices the energy is that of equal
        shares of each state.

    Returns
    -------
    dict of str to dict
        ``step``; ``exposed``, the part of it in which devices wait for communication or for each
        other; ``million_samples`` and ``million_tokens``, if any. Each has ``cost_usd`` and
        ``energy_kwh``.
    """
    waiting = metrics.waiting_s
    step = bill(rates, metrics.busy_s, waiting, metrics.other_s)
    bills = {"step": step._asdict(), "exposed": bill(rates, 0.0, waiting, 0.0)._asdict()}
    for name, rate in (
        ("million_samples", metrics.throughput_samples_per_s),
        ("million_tokens", metrics.tokens_per_s),
    ):
        done = (rate or 0.0) * metrics.step_time_s
        if done:
            bills[name] = {
                part: None if value is None else value * MILLION / done
                for part, value in step._asdict().items()
            }
    return bills


def lasting(rates: Rates, metrics: Metrics, seconds: float) -> Bill[float]:
    """Return cost and energy of a time of consecutive steady steps."""
    parts, step_time = (metrics.busy_s, metrics.waiting_s, metrics.other_s), metrics.step_time_s
    return bill(rates, *(seconds * part / step_time if step_time else 0.0 for part in parts))


@dataclass(frozen=True)
class Baseline:
    """A one-device step, solved from one measured step."""

    scenario: str  # of the point
    microbatch: int
    world_size: int  # where the step was measured
    num_nodes: int  # where the step was measured
    given: float  # the scenario's one-device step [s]
    found: float  # the one-device step that fits the measured step [s]
    # low, high: its 90 % interval, from the uncertainty of the other constants [s]
    low: float
    high: float
    # by_roofline, weighted: that step by the device's figures, and the mean of both, weighted by
    # the inverse of their variances [s]; None if that was not asked for
    by_roofline: float | None = None
    weighted: float | None = None

    @property
    def change(self) -> float:
        """Found over given, less one."""
        return self.found / self.given - 1


def to_json(baselines: Sequence[Baseline]) -> str:
    """Write baselines as one JSON document; times in seconds."""
    renamed = [
        {
            f"{k}_s" if isinstance(v, float) else k: v
            for k, v in asdict(baseline).items()
            if v is not None
        }
        for baseline in baselines
    ]
    return json.dumps({"baselines": renamed}, indent=1, allow_nan=False) + "\n"
