"""Outlook: what a steady step costs, and what the way to the target takes without failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.engine.record import StepRecord
from simdp.job.target import Need
from simdp.job.target.loss import LossReached
from simdp.results.money import BUSY, REST, WAITING, Rates, energy_range, lasting, step_bill
from simdp.scenario import Scenario

HOUR = 3600.0


def cost_of(scenario: Scenario, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a steady step costs; see `simdp.results.result.Result.cost`."""
    cluster = scenario.cluster
    rates = cluster.rates()
    if not rates.is_known:
        return {}
    found: dict[str, Any] = dict(step_bill(rates, metrics))
    parts = (sum(metrics[key] for key in keys) for keys in (BUSY, WAITING, REST))
    between = energy_range(rates, *parts)
    if between is not None:
        found["energy_between_kwh"] = list(between)
    if rates.price is not None:
        found["price_usd_per_h"] = rates.price * HOUR / float((1 / cluster.sharers()).sum())
        found["price_date"] = price_date(cluster)
    return found


def price_date(cluster: Cluster) -> str | None:
    """The oldest date of list prices that stand in for the user's own; None where none does."""
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    if cluster.price is not None:
        return None
    return min((device.price.date for device in devices if device.price is not None), default=None)


def need_of(scenario: Scenario, global_batch: float) -> Need | None:
    """Samples that a scenario's target takes; None without one, or where only a run can tell."""
    if scenario.target is None:
        return None
    num_samples = scenario.workload.num_samples(scenario.base)
    return scenario.target.need(global_batch, num_samples)


def target_of(
    scenario: Scenario,
    metrics: Mapping[str, Any],
    records: Sequence[StepRecord],
    ends: Floats,
) -> dict[str, Any] | None:
    """What the target takes; see `simdp.results.result.Result.target`.

    Parameters
    ----------
    scenario : Scenario
        One point.
    metrics : mapping
        Of its steady step.
    records : sequence of StepRecord
        What it learned.
    ends : ndarray, shape `(world_size, num_steps + 1)`
        As from `simdp.results.metrics.step_ends`.
    """
    target, workload = scenario.target, scenario.workload
    if target is None:
        return None
    rates = scenario.cluster.rates()
    if isinstance(target, LossReached):
        return _of_loss(target, rates, metrics, records, ends) if scenario.numerics else None
    throughput = metrics["throughput_samples_per_s"]
    batch = float(workload.samples_per_step(scenario.cluster.world_size))
    need = need_of(scenario, batch)
    if need is None or not throughput:
        return None
    found = {
        "samples": {"mean": need.mean, "sd": need.sd},
        "steps": need.steps(batch),
        **_over_time(rates, metrics, need.seconds(throughput)),
    }
    return {"kind": target.kind, **found}


def _of_loss(
    target: LossReached,
    rates: Rates,
    metrics: Mapping[str, Any],
    records: Sequence[StepRecord],
    ends: Floats,
) -> dict[str, Any]:
    """When a run reached a loss; ``ends`` may be of its last steps alone."""
    steps = target.reached_after([record.loss for record in records])
    found: dict[str, Any] = {"kind": target.kind, "reached": steps is not None, "steps": steps}
    column = None if steps is None else ends.shape[1] - 1 - (len(records) - steps)
    if steps is None or column is None or column < 0:
        return found | dict.fromkeys(("samples", "time_s", "cost_usd", "energy_kwh"))
    seconds = {"mean": float(ends[:, column].max())}
    done = float(sum(record.samples for record in records[:steps]))
    return found | {"samples": {"mean": done, "sd": 0.0}, **_over_time(rates, metrics, seconds)}


def _over_time(
    rates: Rates, metrics: Mapping[str, Any], seconds: dict[str, float]
) -> dict[str, dict[str, float] | None]:
    """Times, with what steady steps cost and draw meanwhile."""
    bills = {name: lasting(rates, metrics, time) for name, time in seconds.items()}
    costs = {name: bill.cost_usd for name, bill in bills.items() if bill.cost_usd is not None}
    energies = {
        name: bill.energy_kwh for name, bill in bills.items() if bill.energy_kwh is not None
    }
    return {"time_s": seconds, "cost_usd": costs or None, "energy_kwh": energies or None}
