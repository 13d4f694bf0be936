"""Why memory of a device ran out: from the message alone, and what the failed tensor is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simdp.results.diagnosis import Confidence, Finding, TextCause
from simdp.studies.diagnose.logs.sizes import KnownModels, in_words
from simdp.traces.logs import JobLog, MemorySummary, OutOfMemory

CONTEXT = 2 * 2**30  # bytes that a CUDA context and NCCL take outside of torch's allocator, at most
NEAR_LIMIT = 0.1  # part of the memory that may be unused when it is simply full
FULL = 0.9  # part of the memory in tensors from which it is full, whatever its blocks


def memory_findings(logs: Sequence[JobLog], models: KnownModels) -> Iterator[Finding]:
    """Find why allocations failed."""
    failures = [oom for log in logs if log.memory for oom in log.memory.failures]
    for failure in failures[:1]:
        ranks = sorted({oom.rank for oom in failures if oom.rank is not None})
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
    symptom = f"{_gib(failure.asked)} did not fit{gpu}{tensor}"
    obtained = f"{_gib(allocated)} allocated, {_gib(unused)} reserved but unused, {_gib(free)} free"
    expected = f"{_gib(failure.asked)} more" + (f" of {_gib(total)}" if total else "")
    shown = Shown(symptom, expected, obtained, ranks)
    full = allocated > FULL * total if total else False
    if free >= failure.asked and total:
        yield shown.finding(
            "out_of_memory",
            f", though {_gib(free)} are free: the process has a limit of its own, such as "
            "set_per_process_memory_fraction, a MIG slice, or a driver without memory.",
            "nvidia-smi while it runs; look for the limit",
            "possible",
        )
        return
    split = unused > 0 and unused + free >= failure.asked
    if split:
        yield shown.finding(
            "fragmentation",
            f", though {_gib(unused + free)} are free or reserved but unused: the allocator's "
            "segments are split into blocks in use.",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; batches of one shape (pad or "
            "bucket lengths)",
            "possible" if full else "likely",
        )
    others = _others(failure)
    if others > CONTEXT:
        yield shown.finding(
            "out_of_memory",
            f": {_gib(others)} of the device belong to something else than this process's "
            "tensors, such as another process.",
            "nvidia-smi lists the processes of each GPU; each rank needs "
            "torch.cuda.set_device(local_rank) and torch.load(map_location=...)",
            "likely",
        )
    elif full or not split:
        yield shown.finding(
            "out_of_memory",
            f": tensors take {_gib(allocated)}" + (f" of {_gib(total)}." if total else "."),
            "shard more (ZeRO-3 or FSDP), a smaller micro-batch, activation checkpointing; "
            "python -m simdp fits MODEL --gpus N --device D shows which method fits",
            "likely" if split else "certain",
        )


class Shown(NamedTuple):
    """What all findings of a failure say."""

    symptom: str
    expected: str
    obtained: str
    ranks: tuple[int, ...]

    def finding(self, cause: TextCause, why: str, how: str, sure: Confidence) -> Finding:
        """A cause of the failure: its reason and its remedy."""
        return Finding.in_text(
            cause,
            f"{self.symptom}{why}",
            self.ranks,
            expected=self.expected,
            obtained=self.obtained,
            remedy=how,
            confidence=sure,
        )


def _others(failure: OutOfMemory) -> float:
    """Bytes that are not of this process's allocator."""
    if failure.others:
        return sum(failure.others) if failure.in_use is not None else 0.0
    known = (failure.free, failure.allocated, failure.unused)
    if failure.in_use is not None or failure.total is None or None in known:
        return 0.0
    foreign = failure.total - sum(share or 0.0 for share in known)
    return foreign if foreign > NEAR_LIMIT * failure.total else 0.0


def _summary(summary: MemorySummary) -> Iterator[Finding]:
    """Findings of a memory summary: retries of cudaMalloc, and memory split into blocks."""
    where = "" if summary.device is None else f" of device {summary.device}"
    gap = summary.reserved - summary.allocated
    if not (summary.retries or summary.ooms):
        return
    is_split = gap > NEAR_LIMIT * summary.reserved
    yield Finding.in_text(
        "fragmentation" if is_split else "out_of_memory",
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
