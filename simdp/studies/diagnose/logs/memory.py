"""Why memory of a device ran out: from the message alone, and what the failed tensor is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simdp.results.diagnosis import Finding
from simdp.studies.diagnose.logs.sizes import KnownModels, in_words
from simdp.traces.logs import JobLog, MemorySummary, OutOfMemory

CONTEXT = 2 * 2**30
"""Bytes that a CUDA context and NCCL take outside of torch's allocator, at most."""

NEAR_LIMIT = 0.1
"""Part of the memory that may be unused when it is simply full."""


def memory_findings(logs: Sequence[JobLog], models: KnownModels) -> Iterator[Finding]:
    """Find why allocations failed."""
    failures = [one for log in logs if log.memory for one in log.memory.failures]
    for failure in failures[:1]:
        ranks = sorted({one.rank for one in failures if one.rank is not None})
        yield from _failure(failure, tuple(ranks), models)
    for log in logs:
        for summary in log.memory.summaries if log.memory else ():
            yield from _summary(summary)


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**29 else f"{value / 2**20:.0f} MiB"


def _failure(
    failure: OutOfMemory, ranks: tuple[int, ...], models: KnownModels
) -> Iterator[Finding]:
    words = in_words(models.of_bytes(failure.asked, failure.rounding))
    tensor = f" ({words})" if words else ""
    gpu = "" if failure.device is None else f" on GPU {failure.device}"
    allocated, total = failure.allocated or 0.0, failure.total or 0.0
    unused, free = failure.unused or 0.0, failure.free or 0.0
    asked = f"{_gib(failure.asked)} did not fit{gpu}{tensor}"
    obtained = f"{_gib(allocated)} allocated, {_gib(unused)} reserved but unused, {_gib(free)} free"
    expected = f"{_gib(failure.asked)} more" + (f" of {_gib(total)}" if total else "")
    split = unused > 0 and unused + free >= failure.asked
    if split:
        yield Finding(
            "fragmentation",
            None,
            f"{asked}, though {_gib(unused + free)} are free or reserved but unused: the "
            "allocator's segments are split into blocks in use.",
            ranks,
            expected=expected,
            obtained=obtained,
            remedy="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; batches of one shape (pad "
            "or bucket lengths)",
            confidence="likely",
        )
    foreign = total - free - allocated - unused if total else 0.0
    others = sum(failure.others) if failure.others and failure.in_use is not None else 0.0
    if not others and failure.in_use is None and not failure.others:
        others = foreign if foreign > max(CONTEXT, NEAR_LIMIT * total) else 0.0
    if others > CONTEXT:
        yield Finding(
            "out_of_memory",
            None,
            f"{asked}: {_gib(others)} of the device belong to something else than this process's "
            "tensors, such as another process.",
            ranks,
            expected=expected,
            obtained=obtained,
            remedy="nvidia-smi lists the processes of each GPU; each rank needs "
            "torch.cuda.set_device(local_rank) and torch.load(map_location=...)",
            confidence="likely",
        )
    elif not split:
        full = f" of {_gib(total)}" if total else ""
        yield Finding(
            "out_of_memory",
            None,
            f"{asked}: tensors take {_gib(allocated)}{full}.",
            ranks,
            expected=expected,
            obtained=obtained,
            remedy="shard more (ZeRO-3 or FSDP), a smaller micro-batch, activation checkpointing; "
            "python -m simdp fits MODEL --gpus N --device D shows which method fits",
            confidence="certain",
        )


def _summary(summary: MemorySummary) -> Iterator[Finding]:
    """Findings of a memory summary: retries of cudaMalloc, and memory split into blocks."""
    where = "" if summary.device is None else f" of device {summary.device}"
    gap = summary.reserved - summary.allocated
    if not (summary.retries or summary.ooms):
        return
    is_split = gap > NEAR_LIMIT * summary.reserved
    yield Finding(
        "fragmentation" if is_split else "out_of_memory",
        None,
        f"cudaMalloc had to be repeated {summary.retries} times{where}, and {summary.ooms} "
        "allocations failed: each repetition waits for the device and empties the cache.",
        expected="no retries",
        obtained=f"peaks: {_gib(summary.allocated)} allocated, {_gib(summary.reserved)} reserved, "
        f"{_gib(summary.non_releasable)} not releasable",
        remedy="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if is_split
        else "a smaller micro-batch, activation checkpointing, or more sharding",
        confidence="likely",
    )
