"""Recognises the strategy from the collectives of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from simdp.reports import figures
from simdp.steps.partition import BUCKET_CAP_NBYTES, FIRST_BUCKET_NBYTES
from simdp.strategies import strategy_class
from simdp.strategies.zero import PREFETCHED_ELEMENTS
from simdp.studies.replay.timeline import BACKWARD, UNIT_COPIES, StepCollective, StepWork
from simdp.studies.replay.typical import micro_steps
from simdp.traces import ITEMSIZE

FLOATS = ("float64", "float32", "float16", "bfloat16", "")

LOW = {"float16": "fp16", "bfloat16": "bf16"}

LEAST_NBYTES = 1024  # all_reduces of fewer bytes in backward are statistics or flags

Sharded = Literal["nothing", "optimizer_state", "gradients", "units", "parameters"]
"""Sharded state, by the collectives: of ``units`` whole modules are gathered at a time, of
``parameters`` as many as fit into a buffer."""


@dataclass(frozen=True)
class Recognised:
    """A strategy, and a step's collectives by their use in it."""

    strategy: dict[str, Any]  # as in a scenario
    sharded: Sharded = "nothing"  # one of `Sharded`
    # collectives of gradients, in launch order; of ``units`` those of backward
    buckets: tuple[StepCollective, ...] = ()
    units: tuple[StepCollective, ...] = ()  # of ``fsdp`` and ``zero3``: the gathers of forward
    # of ``zero3``: gathers behind the update, of parameters that stay whole
    persistent: tuple[StepCollective, ...] = ()
    # bytes of single parameters with collectives of their own; in no order
    tensors: tuple[float, ...] = ()
    buffers: tuple[StepCollective, ...] = ()  # broadcasts before forward
    # collectives that no strategy of simdp has: their time stays in place
    foreign: tuple[StepCollective, ...] = ()
    remarks: tuple[str, ...] = field(default=())  # for the report

    def caps(self) -> list[float]:
        """Limits of buckets [bytes]; torch's, unless the strategy has its own."""
        cap = self.strategy.get("bucket_cap")
        if cap is not None:
            return [float(cap.split()[0])]
        first = BUCKET_CAP_NBYTES if self.sharded == "gradients" else FIRST_BUCKET_NBYTES
        return [first, BUCKET_CAP_NBYTES]


def recognise(step: StepWork, world_size: int) -> Recognised:
    """Recognise the strategy by a step's collectives.

    All_reduces in backward are DDP's buckets; with broadcasts behind the update they are ZeRO-1's.
    Reduce_scatters in backward are ZeRO-2's with gathers behind the update; with as many gathers in
    forward FSDP's, the newer one where units are copied; all_reduces of fewer ranks beside these
    make that HSDP. Gathers both in forward and behind the update, or another number of them than of
    reduce_scatters, are ZeRO-3's.
    """
    begins = [int(kernels[0]) for kernels in micro_steps(step) if len(kernels)] or [0]
    skipped = _repeated(step, begins)
    begin, last_sent = begins[-1] if skipped else 0, step.sent[skipped:]
    real = [sent for sent in last_sent if sent.dtype in FLOATS]
    if world_size > 1:  # a rank alone has its collectives for nothing, but they say their sizes
        real = [sent for sent in real if sent.group_size != 1]
    back = begin + np.flatnonzero(step.phase[begin:] == BACKWARD)
    first, last = (int(back[0]), int(back[-1])) if len(back) else (len(step.names), -1)
    before = [sent for sent in real if sent.after <= first]
    behind = [sent for sent in real if sent.after > last + 1]
    inside = [sent for sent in real if sent.after > first and sent not in behind]
    gathers = _named(before, "all_gather")
    scatters = _named([*inside, *behind], "reduce_scatter")
    reduces = [s for s in _named([*inside, *behind], "all_reduce") if not s.nbytes < LEAST_NBYTES]
    sized = [sent for sent in reduces if sent.nbytes == sent.nbytes]
    if gathers and scatters:
        copied = any(word in name for name in step.names for word in UNIT_COPIES)
        persistent = _named(behind, "all_gather")
        if persistent or len(gathers) != len(scatters):
            recognised = _zero3(gathers, scatters, persistent)
        else:
            recognised = _sharded(gathers, scatters, reduces, world_size, copied)
    else:
        recognised = _buckets(scatters, sized, behind)
    if recognised.sharded == "units":
        recognised = replace(recognised, buckets=_units_apart(recognised.buckets, first, last + 1))
    else:
        buckets = _launched(recognised.buckets, step, first, last + 1)
        recognised = replace(recognised, buckets=buckets)
    buffers = tuple(s for s in last_sent if s.name == "broadcast" and s.after <= first)
    strategy = dict(recognised.strategy)
    if recognised.sharded == "nothing" and not _known(buffers):
        strategy["broadcast_buffers"] = False
    if len(begins) > 1:
        strategy |= _when_exchanged(strategy["kind"], step.sent[:skipped])
    own = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    foreign = tuple(s for s in step.sent if s.name not in own or s.nbytes != s.nbytes)
    return replace(
        recognised,
        strategy=strategy,
        buffers=_known(buffers) if recognised.sharded in ("nothing", "optimizer_state") else (),
        foreign=foreign,
        remarks=(*recognised.remarks, *_foreign_remarks(foreign)),
    )


def _is_sum(sent: StepCollective) -> bool:
    is_large = sent.dtype in FLOATS and not sent.nbytes < LEAST_NBYTES
    return is_large and sent.name in ("all_reduce", "reduce_scatter")


def _repeated(step: StepWork, begins: Sequence[int]) -> int:
    """Count the collectives before the last micro-step where all exchange the same; else 0.

    ``begins`` are the first kernels of the micro-steps.
    """
    names, num_before = ("reduce_scatter", "all_reduce"), 0
    sums: dict[str, list[list[float]]] = {name: [[] for _ in begins] for name in names}
    for number, sent in enumerate(step.sent):
        if _is_sum(sent):  # the last one of a micro-step is launched behind its last kernel
            place = max(int(np.searchsorted(begins, sent.after)) - 1, 0)
            sums[sent.name][place].append(sent.nbytes)
            num_before = number + 1 if place < len(begins) - 1 else num_before
    scattered, reduced = sums.values()
    first = scattered if any(scattered) else reduced
    is_repeated = len(begins) > 1 and all(sizes == first[0] for sizes in first)
    return num_before if is_repeated else 0


def _when_exchanged(kind: str, before: Sequence[StepCollective]) -> dict[str, Any]:
    """Options by which micro-steps exchange gradients, by the collectives before the last one."""
    sums, known = {sent.name for sent in before if _is_sum(sent)}, strategy_class(kind)
    for key, value in known.sync_once.items():
        if known.model_fields[key].default == value:
            return {key: not value} if before else {}
        if not before or (key == "all_reduce" and key not in sums):
            return {key: value}
    return {}


def _buckets(
    scatters: Sequence[StepCollective],
    sized: Sequence[StepCollective],
    behind: Sequence[StepCollective],
) -> Recognised:
    """DDP or a stage of ZeRO with whole parameters, by the collectives of gradients."""
    if scatters:
        strategy = {"kind": "zero2", **_cap(scatters, zero=True)}
        return Recognised(strategy, "gradients", tuple(scatters))
    if sized and _named(behind, "all_gather"):
        strategy = {"kind": "zero1", "communication": "deepspeed"}
        return Recognised(strategy, "optimizer_state", tuple(sized))
    if sized and len(_named(behind, "broadcast")) > 1:
        sizes = tuple(s.nbytes for s in _named(behind, "broadcast"))
        strategy = {"kind": "zero1", **_cap(sized)}
        return Recognised(strategy, "optimizer_state", tuple(sized), tensors=sizes)
    strategy = {"kind": "ddp", **_cap(sized), **_hook(sized)} if sized else {"kind": "ddp"}
    return Recognised(strategy, buckets=tuple(sized))


def whole_nbytes(sent: StepCollective) -> float:
    """Bytes of a bucket as wide as its gradients are: twice what a 16-bit hook sends."""
    return sent.nbytes * (2 if sent.dtype in LOW else 1)


def _launched(
    buckets: Sequence[StepCollective], step: StepWork, first: int, last: int
) -> tuple[StepCollective, ...]:
    """Place buckets that stood in a queue between those that did not.

    The last one is launched when backward ends. Between two known ones, backward's time is
    divided among the others by their bytes, and each is launched before it began.
    """
    if not any(sent.queued for sent in buckets):
        return tuple(buckets)
    clock = np.concatenate([[0.0], np.cumsum(step.busy + step.idle)])
    launched, known = list[StepCollective](), first
    for number, sent in enumerate(buckets):
        if not sent.queued or number == len(buckets) - 1:
            known = sent.after
            launched.append(sent)
            continue
        ahead = list(buckets[number:])
        stop = next((i for i, bucket in enumerate(ahead) if not bucket.queued), len(ahead) - 1)
        end = ahead[stop].after if not ahead[stop].queued else last
        part = sent.nbytes / sum(bucket.nbytes for bucket in ahead[: stop + 1])
        at = clock[known] + part * (clock[end] - clock[known])
        known = min(max(int(np.searchsorted(clock, at)), known), sent.after)
        launched.append(replace(sent, after=known))
    return tuple(launched)


def _units_apart(
    units: Sequence[StepCollective], first: int, last: int
) -> tuple[StepCollective, ...]:
    """Place units whose sums stood in a queue when backward was over.

    Each has as many kernels as the next one before it that is as large, else its part by bytes; the
    root keeps at least one.
    """
    placed = list[StepCollective]()
    for number, sent in enumerate(units):
        before = placed[-1].after if placed else first
        if sent.after >= last and number < len(units) - 1:
            bounds = [first, *(unit.after for unit in placed)]
            same_size = [k for k, unit in enumerate(placed) if unit.nbytes == sent.nbytes]
            if same_size:
                num = bounds[same_size[-1] + 1] - bounds[same_size[-1]]
            else:
                part = sent.nbytes / sum(unit.nbytes for unit in units[number:])
                num = round(part * (last - before))
            sent = replace(sent, after=max(min(before + num, last - 1), before))
        placed.append(sent)
    return tuple(placed)


def _named(sent: Sequence[StepCollective], name: str) -> list[StepCollective]:
    return [collective for collective in sent if collective.name == name]


def _known(sent: Sequence[StepCollective]) -> tuple[StepCollective, ...]:
    return tuple(collective for collective in sent if collective.nbytes == collective.nbytes)


def _sharded(
    gathers: Sequence[StepCollective],
    scatters: Sequence[StepCollective],
    reduces: Sequence[StepCollective],
    world_size: int,
    copied: bool,
) -> Recognised:
    size = gathers[0].group_size
    across = [sent for sent in reduces if 1 < sent.group_size < world_size]
    strategy: dict[str, Any]
    if across and 1 < size < world_size:
        strategy = {"kind": "hsdp", "shard_size": size}
    else:
        strategy = {"kind": "fsdp" if copied else "fsdp1"}
    return Recognised(strategy, "units", tuple(scatters), tuple(gathers))


def _zero3(
    gathers: Sequence[StepCollective],
    scatters: Sequence[StepCollective],
    persistent: Sequence[StepCollective],
) -> Recognised:
    """ZeRO-3, with the sizes of buckets that its collectives show.

    What is fetched ahead is at least so much, but for the last; the first is what forward's first
    call needs.
    """
    strategy: dict[str, Any] = {"kind": "zero3"}
    if len(scatters) > 1:
        strategy["reduce_bucket_size"] = max(elements_of(sent) for sent in scatters)
    ahead = min((elements_of(sent) for sent in gathers[1:-1]), default=PREFETCHED_ELEMENTS)
    if ahead < PREFETCHED_ELEMENTS:
        strategy["prefetch_bucket_size"] = ahead
    return Recognised(strategy, "parameters", tuple(scatters), tuple(gathers), tuple(persistent))


def elements_of(sent: StepCollective) -> int:
    """Elements of a collective's buffer; those of codes count four bytes."""
    return round(sent.nbytes / ITEMSIZE.get(sent.dtype, 4))


def _cap(buckets: Sequence[StepCollective], zero: bool = False) -> dict[str, str]:
    """The limit of buckets, where torch's own does not explain them."""
    *full, _ = [whole_nbytes(sent) for sent in buckets]
    caps = [BUCKET_CAP_NBYTES if zero else FIRST_BUCKET_NBYTES]
    caps += [BUCKET_CAP_NBYTES] * len(full)
    if all(nbytes >= cap for nbytes, cap in zip(full, caps, strict=False)):
        return {}
    return {"bucket_cap": f"{int(min(full))} B"}


def _hook(buckets: Sequence[StepCollective]) -> dict[str, str]:
    """Buckets in 16 bit are taken for those of a hook; weights are as wide as the workload's."""
    hook = LOW.get(buckets[0].dtype)
    return {} if hook is None else {"comm_hook": hook}


def _foreign_remarks(foreign: Sequence[StepCollective]) -> list[str]:
    if not foreign:
        return []
    names = ", ".join(dict.fromkeys(sent.name for sent in foreign))
    total = figures.seconds(sum(sent.seconds for sent in foreign))
    return [
        f"{len(foreign)} collectives ({names}) are not of data parallelism, or without a size: "
        f"each keeps the shortest time that it had, {total} in all, on any number of ranks"
    ]
