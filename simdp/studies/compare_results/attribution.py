"""Attributes a difference of step times to its causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from simdp.engine.simulate import simulate, times_alone
from simdp.errors import ScenarioError
from simdp.results.comparison import Figure, KeyChange, PartChange
from simdp.results.diagnosis import Diagnosis
from simdp.results.metrics import LABELS, Metrics, Unit
from simdp.results.result import Result
from simdp.scenario import checked
from simdp.scenario.overrides import Raw
from simdp.studies.answers import MAX_RANKS, is_short
from simdp.studies.compare_results.matching import STEP_PARTS, Differing, with_a, with_b
from simdp.studies.variants import variant
from simdp.traces import ITEMSIZE

# Attribution --------------------------------------------------------------------------------------

MAX_KEYS = 8  # most differing keys that are changed one at a time
MAX_STEPS = 20  # most steps of a run that is repeated
MAX_RUNS = 64  # most short runs for all points of two results

StepParts = Mapping[str, float]


@dataclass
class Budget:
    """Short runs that are left, their results, and whether keys were skipped for lack of runs."""

    runs: int = MAX_RUNS
    spent: bool = False
    _known: dict[str, StepParts | None] = field(default_factory=dict)

    def metrics(self, raw: Raw, base: Path, steps: int) -> StepParts | None:
        """Parts of a step [s]; None where the scenario is invalid, or takes long to simulate."""
        key = repr((raw, steps))
        if key not in self._known:
            self.runs -= 1
            self._known[key] = _metrics(raw, base, steps)
        return self._known[key]


def attributed(
    a: Raw, b: Raw, base: Path, steps: int, changed: Sequence[Differing], budget: Budget
) -> list[KeyChange]:
    """Simulate the effect of each differing key of two resolved scenarios, largest first.

    ``steps`` are those of the shorter result; ``budget`` is reduced.
    """
    plain = [KeyChange(key.key, key.a, key.b) for key in changed]
    needed = 2 * len(changed) + 4
    if len(changed) > MAX_KEYS or needed > budget.runs:
        budget.spent = budget.spent or bool(changed)
        return plain
    steps = min(steps, MAX_STEPS)
    first, last = (budget.metrics(raw, base, steps) for raw in (a, b))
    if first is None or last is None:
        return plain

    def alone(key: Differing) -> list[dict[str, float] | None]:
        return [
            _less(budget.metrics(with_b(a, key), base, steps), first),
            _less(last, budget.metrics(with_a(b, key), base, steps)),
        ]

    key_changes = [_with(change, alone(key)) for key, change in zip(changed, plain, strict=True)]
    left = [n for n, change in enumerate(key_changes) if change.seconds is None]
    if 1 < len(left) < len(changed):  # keys that are valid only together
        joint = Differing("", None, None, tuple(leaf for n in left for leaf in changed[n].leaves))
        head, *others = left
        joined = _with(plain[head], alone(joint))
        if joined.seconds is not None:
            key_changes[head] = replace(joined, together=tuple(changed[n].key for n in others))
            for n in others:
                key_changes[n] = replace(plain[n], together=(changed[head].key,))
    return sorted(key_changes, key=lambda change: -abs(change.seconds or 0.0))


def _with(change: KeyChange, ways: Sequence[dict[str, float] | None]) -> KeyChange:
    """Fill in the effect of a key: added to A, and removed from B."""
    known = [way for way in ways if way is not None]
    if not known:
        return change
    mean = {name: fmean(way[name] for way in known) for name in STEP_PARTS}
    seconds = mean.pop("step_time_s")
    from_a, to_b = (None if way is None else way["step_time_s"] for way in ways)
    return replace(change, seconds=seconds, from_a=from_a, to_b=to_b, parts=mean)


def _less(after: StepParts | None, before: StepParts | None) -> dict[str, float] | None:
    if after is None or before is None:
        return None
    return {name: after[name] - before[name] for name in STEP_PARTS}


def _metrics(raw: Raw, base: Path, steps: int) -> StepParts | None:
    try:
        scenario = checked(raw, base)
    except ScenarioError:
        return None
    if scenario.cluster.world_size > MAX_RANKS or scenario.strategy.has_server:
        return None
    short = variant(scenario, {}, steps)
    if short is None:
        return None
    result = times_alone(short)
    if result is None and is_short(short):
        result = simulate(short)
    if result is None:
        return None
    return {name: float(result.metrics[name]) for name in STEP_PARTS}


# Parts and figures --------------------------------------------------------------------------------

TOGETHER = "compute_and_update_s"
"""Compute and update as one part, for comparison with a trace, which does not separate their
kernels."""

CAUSES = {
    "compute_bound": TOGETHER,
    "exposed_communication": "exposed_comm_s",
    "slow_link": "exposed_comm_s",
    "straggler": "wait_s",
    "imbalance": "wait_s",
    "input_stall": "other_s",
    "launch_bound": "other_s",
    "host_synchronisation": "other_s",
    "copies": TOGETHER,
    "many_small_collectives": "exposed_comm_s",
    "unused_parameters": "exposed_comm_s",
}
"""Part of a step that each cause of a diagnosis belongs to."""

LEAST_CAUSE = 0.01  # least share of a step of the causes that are named next to a part
LEAST_SHARE = 0.25  # least share of a part's change for a key to be named next to it
MAX_NAMED = 3  # most keys next to a part, largest first

Values = dict[str, float]
Known = dict[tuple[str, Unit], float | None]


def parts_of_result(result: Result, beside_trace: bool) -> Values:
    """Parts of a step by name, which sum to it [s]."""
    parts = {name: float(result.metrics[name]) for name in STEP_PARTS[1:]}
    if not beside_trace:
        return parts
    return {TOGETHER: parts.pop("compute_s") + parts.pop("update_s"), **parts}


def parts_of_traces(diagnosis: Diagnosis) -> Values:
    """Parts of a step of a real run: means over steps and ranks [s]."""
    step = diagnosis.step_time_s or 0.0
    known = {
        TOGETHER: diagnosis.compute_s or 0.0,
        "exposed_comm_s": diagnosis.transfer_s or 0.0,
        "wait_s": diagnosis.wait_s or 0.0,
    }
    return {**known, "other_s": step - sum(known.values())}


def part_changes(
    a: Values, b: Values, keys: Sequence[KeyChange], traces: Sequence[tuple[str, Diagnosis]]
) -> tuple[PartChange, ...]:
    """Compare parts, the largest change first, each with the keys and findings that explain it."""
    changes = []
    for name in a:
        change = b[name] - a[name]
        causes = tuple(
            f"{whose}: " * (len(traces) > 1) + f"{finding.cause}: {finding.evidence}"
            for whose, diagnosis in traces
            for finding in diagnosis.verdict
            if CAUSES.get(finding.cause) == name and finding.worth >= LEAST_CAUSE
        )
        changes.append(PartChange(name, a[name], b[name], _keys_of(name, change, keys), causes))
    return tuple(sorted(changes, key=lambda part: -abs(part.seconds)))


def _keys_of(part: str, change: float, keys: Sequence[KeyChange]) -> tuple[str, ...]:
    """Keys that explain a part's change: the only one, or the largest by simulation."""
    if not change:
        return ()
    if len(keys) == 1:
        return (keys[0].key,)
    named = ("compute_s", "update_s") if part == TOGETHER else (part,)
    shares = {
        key_change.key: sum(key_change.parts.get(name, 0.0) for name in named) / change
        for key_change in keys
    }
    ranked = sorted(shares, key=lambda key: -shares[key])
    return tuple(key for key in ranked[:MAX_NAMED] if shares[key] >= LEAST_SHARE)


def laid_out(a: Known, b: Known) -> tuple[Figure, ...]:
    """Pair the figures of two sides; those that both lack are left out."""
    return tuple(
        Figure(*key, a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) is not None or b.get(key) is not None
    )


def figures_of_result(result: Result) -> Known:
    """Throughput, memory, bytes, cost and loss."""
    return dict(_of_result(result.metrics, result))


SINGLE_FIGURES = (
    *("throughput_samples_per_s", "tokens_per_s", "mfu"),
    *("comm_s", "without_stragglers_s"),
)


def _named(metric: str) -> tuple[str, Unit]:
    return LABELS[metric].title, LABELS[metric].unit


def _of_result(m: Metrics, result: Result) -> Iterator[tuple[tuple[str, Unit], Any]]:
    yield ("ranks", "number"), result.world_size
    for name in SINGLE_FIGURES:
        yield _named(name), m[name]
    yield _named("peak_memory_bytes"), max(m.peak_memory_bytes, default=None)
    for name, nbytes in m.memory_bytes.items():
        yield (f"  {name.replace('_', ' ')}", "bytes"), nbytes
    yield _named("bytes_sent_per_rank"), max(m.bytes_sent_per_rank, default=None)
    buckets = m.bucket_bytes
    yield ("buckets", "number"), None if buckets is None else len(buckets)
    yield ("in buckets", "bytes"), None if buckets is None else sum(buckets)
    step = result.cost.get("step", {})
    yield ("a step costs", "USD"), step.get("cost_usd")
    yield ("a step draws", "kWh"), step.get("energy_kwh")
    for key, unit in (("time_s", "s"), ("cost_usd", "USD"), ("energy_kwh", "kWh")):
        yield (f"to the target, {unit}", unit), ((result.target or {}).get(key) or {}).get("mean")  # type: ignore[misc]
    yield _named("loss"), m.last_loss


def figures_of_traces(diagnosis: Diagnosis) -> Known:
    """The same figures of a real run, if the trace has them."""
    hidden, exposed = diagnosis.hidden_comm_s, diagnosis.exposed_comm_s
    known: Known = {("ranks", "number"): diagnosis.world_size or diagnosis.num_ranks}
    if hidden is not None and exposed is not None:
        known["communication in all", "s"] = hidden + exposed
    if diagnosis.buckets:
        known["buckets", "number"] = len(diagnosis.buckets)
        sizes = [ITEMSIZE.get(bucket.dtype) for bucket in diagnosis.buckets]
        if None not in sizes:
            sized = zip(diagnosis.buckets, sizes, strict=True)
            elements = sum(bucket.num_elements * (n or 0) for bucket, n in sized)
            known["in buckets", "bytes"] = elements
    return known


def both(a: Known, b: Known) -> tuple[Known, Known]:
    """Keep the figures that both sides have."""
    shared = a.keys() & b.keys()
    return {k: v for k, v in a.items() if k in shared}, {k: v for k, v in b.items() if k in shared}
