"""Advice: single changes of a run that would clearly make it faster, each simulated.

Every variant has a few steps of times alone, and is played where the vectorised clock is exact;
those that would take longer are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from simdp.engine.simulate import is_quick, step_metrics
from simdp.results.metrics import steady_step_time
from simdp.results.result import Advice, Result
from simdp.scenario import Scenario
from simdp.studies.variants import VariantChange, around_stragglers, shortened, with_settings

STEPS = 3
"""A step to warm up, and two that count."""

LEAST_EXPOSED = 0.05
"""Part of a step that communication must take before anything is tried."""

LEAST_GAIN = 0.05
"""Part by which the samples per second must rise."""

MOST = 3
"""Lines of advice; the best ones."""

MAX_RANKS = 256
"""Larger runs get none: every variant would take a second."""

MAX_PLANNED_RANKS = 64
"""Ranks for which other algorithms are planned."""

TIMES = 4
"""By which a number of micro-steps, or a bucket, is tried larger or smaller."""

DEFAULT_CAP = 25 * 2**20
"""Torch's cap of a bucket [bytes]."""

ALGORITHMS = ("ring", "tree", "hierarchical", "bidirectional_ring", "direct")
"""Of all_reduce, as long as links are not shared."""


def would_help(scenario: Scenario, result: Result) -> Advice | None:
    """Look for single changes that would make a run faster.

    Parameters
    ----------
    scenario : Scenario
        One point.
    result : Result
        Of it.

    Returns
    -------
    Advice or None
        None where communication costs too little and nobody is slow, or the run is too large or of
        a kind that is not repeated by times alone.
    """
    m, n = result.metrics, scenario.cluster.world_size
    step_time = m["step_time_s"]
    if not 1 < n <= MAX_RANKS or not step_time or scenario.workload.mode != "training":
        return None
    changes = [*around_stragglers(scenario)]
    if m["exposed_comm_s"] >= LEAST_EXPOSED * step_time:
        changes += _changes(scenario, m)
    if not changes:
        return None
    short = shortened(scenario, STEPS)
    if short is None or not is_quick(short):
        return None
    raw = short.resolved()
    now = _first_steps(scenario, result) or _samples_per_second(short)
    if now is None:
        return None
    best: dict[str, tuple[float, VariantChange]] = {}
    tried = 0
    for change in changes:
        found = _samples_per_second(with_settings(short, raw, change.settings()))
        if found is None:
            continue
        tried += 1
        gain = found / now - 1
        if gain >= LEAST_GAIN and gain > best.get(change.family, (0.0, change))[0]:
            best[change.family] = gain, change
    each = [(change.in_words(), 1 + gain) for gain, change in best.values()]
    each.sort(key=lambda pair: (-pair[1], pair[0]))
    lines = [f"{times:.3g}x samples/s: {words}" for words, times in each[:MOST]]
    return Advice(lines, tried, each[:MOST])


def _first_steps(scenario: Scenario, result: Result) -> float | None:
    """Samples per second of the first steps of a run; None where times alone would differ."""
    ends, workload = result.step_ends, scenario.workload
    if ends is None or ends.shape[1] <= STEPS or workload.inject or result.participation:
        return None
    if result.metrics["skipped_steps"]:  # an update that is skipped takes less time
        return None
    batches = workload.batches(scenario.cluster.world_size, scenario.seed, scenario.base)
    samples = [int(step.sizes.sum()) for step in islice(batches, 1, STEPS)]
    step_time = steady_step_time(ends[:, : STEPS + 1])
    return sum(samples) / len(samples) / step_time if step_time else None


def _samples_per_second(scenario: Scenario | None) -> float | None:
    """Samples per second of a scenario; None where there is none, or it takes long to simulate."""
    found = None if scenario is None else step_metrics(scenario)
    return None if found is None else found["throughput_samples_per_s"]


def _changes(scenario: Scenario, metrics: dict[str, Any]) -> Iterator[VariantChange]:
    """What may be worth a try."""
    workload, strategy = scenario.workload, scenario.strategy
    if workload.microbatch is not None and isinstance(workload.grad_accum, int):
        more = workload.grad_accum * TIMES
        but = f"a step of {TIMES} x the samples"
        yield VariantChange("accumulate", "workload.grad_accum", more, but)
    if strategy.varies_buckets:
        yield from _of_buckets(scenario, metrics["bucket_bytes"] or [])
    played = not scenario.collectives.cost_of("all_reduce").timed
    if played and scenario.cluster.world_size <= MAX_PLANNED_RANKS:
        for kind in ALGORITHMS:
            if kind != scenario.collectives.all_reduce.kind:
                yield VariantChange("algorithm", "collectives.all_reduce", kind)


def _of_buckets(scenario: Scenario, buckets: list[float]) -> Iterator[VariantChange]:
    workload, options = scenario.workload, dict(scenario.strategy)
    if not options["overlap"]:
        yield VariantChange("overlap", "strategy.overlap", True)
    if options["comm_hook"].kind == "none" and workload.gradient_itemsize > 2:
        devices = scenario.cluster.devices()
        low = "bf16" if all("bfloat16" in device.peak for device in devices) else "fp16"
        yield VariantChange("hook", "strategy.comm_hook", low, "gradients are rounded")
    cap = DEFAULT_CAP if options["bucket_cap"] is None else options["bucket_cap"]
    if len(buckets) > 1:
        larger = cap * TIMES if cap else DEFAULT_CAP
        yield VariantChange("bucket", "strategy.bucket_cap", _mebibytes(larger))
    if len(buckets) <= TIMES and cap:
        smaller = max(min(cap, sum(buckets)) / (2 * TIMES), 2**16)
        yield VariantChange("bucket", "strategy.bucket_cap", _mebibytes(smaller))


def _mebibytes(nbytes: float) -> str:
    """A size that reads well, about as large."""
    if nbytes >= 2**20:
        return f"{round(nbytes / 2**20)} MiB"
    return f"{max(round(nbytes / 2**10), 1)} KiB"
