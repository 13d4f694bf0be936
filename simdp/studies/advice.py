"""Single changes that would make a run clearly faster, each simulated.

Every variant is a few steps, timing only, on the vectorised clock; variants that it cannot simulate
exactly are left out. Changes that leave gradients as they are come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from simdp.engine.simulate import is_quick, memory_needed, step_metrics
from simdp.reports.figures import nbytes
from simdp.results.metrics import Metrics, steady_step_time
from simdp.results.result import Advice, Result
from simdp.scenario.root import Scenario
from simdp.strategies.memory import fits
from simdp.studies.variants import VariantChange, around_stragglers, shortened, with_settings

STEPS = 3  # one warm-up step, and two that count
LEAST_EXPOSED = 0.05  # least share of exposed communication in a step for changes to be tried
LEAST_GAIN = 0.05  # least relative gain of samples per second
MOST = 3  # most lines of advice
MAX_RANKS = 256  # most ranks of a run that gets advice: larger ones take a second per variant
MAX_PLANNED_RANKS = 64  # most ranks for trying other algorithms
TIMES = 4  # factor by which micro-steps and buckets change
LEAST_MEMORY = 0.01  # least relative growth of the peak of memory that is named
DEFAULT_CAP = 25 * 2**20  # torch's cap of a bucket [bytes]

ALGORITHMS = ("ring", "tree", "hierarchical", "bidirectional_ring", "direct")
"""Algorithms of all_reduce to try, where links are not shared."""


def would_help(scenario: Scenario, result: Result) -> Advice | None:
    """Find single changes that would make a run faster.

    Returns
    -------
    Advice or None
        None where communication is cheap and no rank is slow, or the run is too large or cannot be
        repeated by times only.
    """
    m, n = result.metrics, scenario.cluster.world_size
    step_time = m.step_time_s
    if not 1 < n <= MAX_RANKS or not step_time or scenario.workload.mode != "training":
        return None
    changes = [*around_stragglers(scenario)]
    if m.exposed_comm_s >= LEAST_EXPOSED * step_time:
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
        rate = _samples_per_second(with_settings(short, raw, change.settings()))
        if rate is None:
            continue
        tried += 1
        gain = rate / now - 1
        if gain >= LEAST_GAIN and gain > best.get(change.family, (0.0, change))[0]:
            best[change.family] = gain, change
    ranked = sorted(
        best.values(), key=lambda pair: (pair[1].but != "", -pair[0], pair[1].in_words())
    )
    listed = [
        (words, 1 + gain)
        for gain, change in ranked
        if (words := _in_words(change, with_settings(short, raw, change.settings()), m))
    ]
    lines = [f"{times:.3g}x samples/s: {words}" for words, times in listed[:MOST]]
    return Advice(lines, tried, listed[:MOST])


def _in_words(change: VariantChange, changed: Scenario | None, metrics: Metrics) -> str | None:
    """Title of a change with the memory that it costs; None where devices have less."""
    if changed is None or change.family not in _exact_values(changed):
        return change.in_words()
    peaks, now = memory_needed(changed).peak.tolist(), max(metrics.peak_memory_bytes)
    if not fits(changed.cluster, peaks):
        return None
    more = max(peaks) - now
    takes = f"{nbytes(more)} more memory" if more > LEAST_MEMORY * now else ""
    return change._replace(but=takes).in_words()


def _first_steps(scenario: Scenario, result: Result) -> float | None:
    """Samples per second of the first steps of a run; None where a timing-only run would differ."""
    ends, workload = result.step_ends, scenario.workload
    if ends is None or ends.shape[1] <= STEPS or workload.inject or result.participation:
        return None
    if result.metrics.skipped_steps:  # a skipped update takes less time
        return None
    n, seed = scenario.cluster.world_size, scenario.seed
    batches = workload.batches(n, seed, scenario.base, has_indices=False)
    samples = [int(step.sizes.sum()) for step in islice(batches, 1, STEPS)]
    step_time = steady_step_time(ends[:, : STEPS + 1])
    return sum(samples) / len(samples) / step_time if step_time else None


def _samples_per_second(scenario: Scenario | None) -> float | None:
    """Samples per second of a scenario; None for None, and where it takes long to simulate."""
    metrics = None if scenario is None else step_metrics(scenario)
    return None if metrics is None else metrics.throughput_samples_per_s


def _changes(scenario: Scenario, metrics: Metrics) -> Iterator[VariantChange]:
    workload, strategy = scenario.workload, scenario.strategy
    if workload.microbatch is not None and isinstance(workload.grad_accum, int):
        more = workload.grad_accum * TIMES
        but = f"a step of {TIMES} x the samples"
        yield VariantChange("accumulate", "workload.grad_accum", more, but)
    now = dict(strategy)
    for key, value in _exact_values(scenario).items():
        if now[key] != value:
            yield VariantChange(key, f"strategy.{key}", value)
    if strategy.varies_buckets:
        yield from _of_buckets(scenario, metrics.bucket_bytes or [])
    played = not scenario.collectives.cost_of("all_reduce").timed
    if played and scenario.cluster.world_size <= MAX_PLANNED_RANKS:
        for kind in ALGORITHMS:
            if kind != scenario.collectives.all_reduce.kind:
                yield VariantChange("algorithm", "collectives.all_reduce", kind)


def _exact_values(scenario: Scenario) -> dict[str, Any]:
    """Values of the strategy's options that may shorten steps and leave gradients as they are."""
    strategy, accumulate = scenario.strategy, scenario.workload.grad_accum
    has_several = isinstance(accumulate, list) or accumulate > 1
    return {**strategy.faster_options, **(strategy.sync_once if has_several else {})}


def _of_buckets(scenario: Scenario, buckets: list[int]) -> Iterator[VariantChange]:
    workload, options = scenario.workload, dict(scenario.strategy)
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
    """Write a size, rounded to whole MiB or KiB."""
    if nbytes >= 2**20:
        return f"{round(nbytes / 2**20)} MiB"
    return f"{max(round(nbytes / 2**10), 1)} KiB"
