"""Figures: parts of a step, and what else two sides say of the same thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simdp.results.diagnosis import Diagnosis
from simdp.results.difference import Figure, KeyChange, PartChange, Unit
from simdp.results.result import Result
from simdp.studies.compare_results.sides import STEP_PARTS
from simdp.studies.diagnose.expected import ITEMSIZE

TOGETHER = "compute_and_update_s"
"""Part of a step beside a trace, which tells the optimizer's kernels from no others."""

CAUSES = {
    "compute_bound": TOGETHER,
    "exposed_communication": "exposed_comm_s",
    "slow_link": "exposed_comm_s",
    "straggler": "wait_s",
    "imbalance": "wait_s",
    "input_stall": "other_s",
    "launch_bound": "other_s",
}
"""The part of a step that a diagnosis speaks of, by its cause."""

LEAST_SHARE = 0.25
"""Part of a part's change that a key brings about, from which on it is named beside it."""

MAX_NAMED = 3
"""Keys beside a part, the greatest first."""

Values = dict[str, float]
Known = dict[tuple[str, Unit], float | None]


def parts_of_result(result: Result, beside_trace: bool) -> Values:
    """Parts of a step by name, which sum to it [s]."""
    found = {name: float(result.metrics[name]) for name in STEP_PARTS[1:]}
    if not beside_trace:
        return found
    return {TOGETHER: found.pop("compute_s") + found.pop("update_s"), **found}


def parts_of_traces(found: Diagnosis) -> Values:
    """The same of a real run: means per step and over ranks [s]."""
    step = found.step_time_s or 0.0
    known = {
        TOGETHER: found.compute_s or 0.0,
        "exposed_comm_s": found.transfer_s or 0.0,
        "wait_s": found.wait_s or 0.0,
    }
    return {**known, "other_s": step - sum(known.values())}


def part_changes(
    a: Values, b: Values, keys: Sequence[KeyChange], traces: Sequence[tuple[str, Diagnosis]]
) -> tuple[PartChange, ...]:
    """Lay parts side by side, that which changed most first, with what explains each."""
    found = []
    for name in a:
        change = b[name] - a[name]
        said = tuple(
            f"{whose}: " * (len(traces) > 1) + f"{one.cause}: {one.evidence}"
            for whose, diagnosis in traces
            for one in diagnosis.verdict
            if CAUSES.get(one.cause) == name
        )
        found.append(PartChange(name, a[name], b[name], _keys_of(name, change, keys), said))
    return tuple(sorted(found, key=lambda part: -abs(part.seconds)))


def _keys_of(part: str, change: float, keys: Sequence[KeyChange]) -> tuple[str, ...]:
    """The keys that bring a part's change about: the only one, or by simulation."""
    if not change:
        return ()
    if len(keys) == 1:
        return (keys[0].key,)
    named = ("compute_s", "update_s") if part == TOGETHER else (part,)
    shares = {one.key: sum(one.parts.get(name, 0.0) for name in named) / change for one in keys}
    ranked = sorted(shares, key=lambda key: -shares[key])
    return tuple(key for key in ranked[:MAX_NAMED] if shares[key] >= LEAST_SHARE)


def laid_out(a: Known, b: Known) -> tuple[Figure, ...]:
    """Figures that either side tells; of a trace those of both."""
    return tuple(
        Figure(*key, a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) is not None or b.get(key) is not None
    )


def figures_of_result(result: Result) -> Known:
    """Throughput, memory, bytes, money and the loss."""
    return dict(_of_result(result.metrics, result))


def _of_result(m: Mapping[str, Any], result: Result) -> Iterator[tuple[tuple[str, Unit], Any]]:
    yield ("ranks", "number"), result.world_size
    yield ("samples per second", "per_s"), m.get("throughput_samples_per_s")
    yield ("tokens per second", "per_s"), m.get("tokens_per_s")
    yield ("MFU", "share"), m.get("mfu")
    yield ("communication in all", "s"), m.get("comm_s")
    yield ("step without stragglers", "s"), m.get("without_stragglers_s")
    yield ("peak memory", "bytes"), max(m.get("peak_memory_bytes") or [None])
    for name, nbytes in (m.get("memory_bytes") or {}).items():
        yield (f"  {name.replace('_', ' ')}", "bytes"), nbytes
    yield ("sent per rank and step", "bytes"), max(m.get("bytes_sent_per_rank") or [None])
    buckets = m.get("bucket_bytes")
    yield ("buckets", "number"), None if buckets is None else len(buckets)
    yield ("in buckets", "bytes"), None if buckets is None else sum(buckets)
    step = result.cost.get("step", {})
    yield ("a step costs", "USD"), step.get("cost_usd")
    yield ("a step draws", "kWh"), step.get("energy_kwh")
    for key, unit in (("time_s", "s"), ("cost_usd", "USD"), ("energy_kwh", "kWh")):
        yield (f"to the target, {unit}", unit), ((result.target or {}).get(key) or {}).get("mean")  # type: ignore[misc]
    losses = m.get("loss") or [None]
    yield ("last loss", "number"), losses[-1]


def figures_of_traces(found: Diagnosis) -> Known:
    """What a trace tells of these."""
    hidden, exposed = found.hidden_comm_s, found.exposed_comm_s
    known: Known = {("ranks", "number"): found.world_size or found.num_ranks}
    if hidden is not None and exposed is not None:
        known["communication in all", "s"] = hidden + exposed
    if found.buckets:
        known["buckets", "number"] = len(found.buckets)
        sizes = [ITEMSIZE.get(one.dtype) for one in found.buckets]
        if None not in sizes:
            each = zip(found.buckets, sizes, strict=True)
            known["in buckets", "bytes"] = sum(one.num_elements * (n or 0) for one, n in each)
    return known


def both(a: Known, b: Known) -> tuple[Known, Known]:
    """Those that both tell."""
    shared = a.keys() & b.keys()
    return {k: v for k, v in a.items() if k in shared}, {k: v for k, v in b.items() if k in shared}
