"""Breakdown: the kinds of kernels that compute consists of, and what each of them loses of MFU."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from simdp.engine.compute.accumulation import with_accumulation
from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import roofline_of
from simdp.engine.samples import Samples
from simdp.scenario import Scenario
from simdp.workload.recomputation import recomputed
from simdp.workload.sampling import Parts

PARTS = ("matrix_products", "attention", "memory_bound", "recompute", "launches", "slowed")
"""Kinds of kernels, what runs a second time, launches that the device waits for, and the rest."""

LEAST_SLOWED = 1e-6
"""Part of compute below which a remainder is rounding."""


def compute_parts(scenario: Scenario, compute: float, peak: float | None) -> list[dict[str, Any]]:
    """Split the compute of a steady step by what it is spent on.

    Parameters
    ----------
    scenario : Scenario
        One point.
    compute : float
        ``compute_s`` of its result [s].
    peak : float or None
        Arithmetic of all devices at their peak [FLOP/s].

    Returns
    -------
    list of dict
        For each of `PARTS` that takes time: ``part``; ``seconds``, mean over ranks; and
        ``of_peak``, the FLOPs of its kernels over what the devices could do at their peak in this
        time (None where it is not known, or the part has no arithmetic). ``matrix_products`` are
        kernels bound by arithmetic; ``attention`` all kernels of attention, without its linear
        layers; ``memory_bound`` kernels bound by memory traffic; ``recompute`` the forward that
        backward runs again; ``launches`` the time for which a device waits for its host;
        ``slowed`` what stragglers and communication that overlaps compute add. The seconds add up
        to ``compute``. Empty where layers have no kernels (measured times, profiles), and under
        strategies in which one process drives all devices, or a parameter server.
    """
    workload, strategy, n = scenario.workload, scenario.strategy, scenario.cluster.world_size
    is_plain = strategy.player == "together" and not strategy.one_process
    if workload.compute.kind != "roofline" or workload.model.timed or not is_plain or not compute:
        return []
    spent = _spent(scenario)
    total = sum(seconds for seconds, _ in spent.values()) / n
    if not total:
        return []
    slowed = max(compute - total, 0.0)
    scale = 1 / n
    if slowed < LEAST_SLOWED * compute or workload.lengths(scenario.seed, scenario.base):
        # Steps whose samples differ in length: this one stands for all of them.
        scale, slowed = compute / total / n, 0.0
    found = list[dict[str, Any]]()
    for part, (seconds, flops) in spent.items():
        mean = seconds * scale
        rate = flops * scale * n / (mean * peak) if peak and flops and mean else None
        found.append({"part": part, "seconds": mean, "of_peak": rate})
    found.append({"part": "slowed", "seconds": slowed, "of_peak": None})
    return [one for one in found if one["seconds"] > 0.0]


def _spent(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Seconds and FLOPs of all ranks in the first steady step, by part."""
    alone = scenario.model_copy(update={"numerics": False})
    workload, n = scenario.workload, scenario.cluster.world_size
    roofline = roofline_of(scenario.cluster)
    times, samples = CallTimes(workload, roofline), Samples(alone)
    again = sorted({call for run in recomputed(workload) for call in run.again})
    first = int(workload.num_steps(n, scenario.base) > 1)
    batches = next(islice(workload.batches(n, scenario.seed, scenario.base), first, None))
    seconds, flops = dict.fromkeys(PARTS[:-1], 0.0), dict.fromkeys(PARTS[:-1], 0.0)

    def add(activity: str, parts: Parts, calls: list[int] | None = None) -> None:
        found = times.by_kind(activity, parts.sizes, samples.looked_at(parts), calls)
        for kind, (lasted, done) in found.items():
            part = kind if calls is None else "recompute"
            seconds[part] += lasted
            flops[part] += done

    is_training = workload.mode == "training"
    adds = is_training and workload.compute.runs_eagerly and scenario.program.partition is None
    for number, parts in enumerate(batches.micro):
        add("forward", parts)
        if is_training:
            add("backward", parts)
        if is_training and again:
            add("forward", parts, again)
        if adds and number:
            seconds["memory_bound"] += _accumulating(times, roofline, parts, samples)
    return {part: (seconds[part], flops[part]) for part in seconds}


def _accumulating(times: CallTimes, roofline: Any, parts: Parts, samples: Samples) -> float:
    """What additions to gradients of an earlier micro-step take on all ranks together [s]."""
    without = times.seconds("backward", parts.sizes, *samples.looked_at(parts))
    with_them = with_accumulation(without, times.workload, roofline)
    return _of_all(with_them) - _of_all(without)


def _of_all(columns: Columns) -> float:
    counts = np.bincount(columns.column, minlength=columns.seconds.shape[1])
    return float(columns.seconds.sum(axis=0) @ counts)
