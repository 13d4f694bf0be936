"""Words: why an option is the best, what it is on the front for, and how sure the order is."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from simdp.results.comparison import NOISE
from simdp.results.plan import GOALS, Option

ADJECTIVES = {"cheapest": "cheaper", "fastest": "faster", "greenest": "greener"}

TERMS = {
    "compute": ("compute_s", "update_s"),
    "exposed communication": ("exposed_comm_s",),
    "waiting for slower ranks": ("wait_s",),
    "other work": ("other_s",),
}
"""Parts of a step by what they are called."""


def why_best(best: Option, other: Option | None, goal: str) -> str:
    """What makes an option better than the next one, in GPU hours, price and parts of a step."""
    if other is None:
        return "the only one that meets the limits"
    mine, theirs = best.value(GOALS[goal]), other.value(GOALS[goal])
    assert mine is not None
    assert theirs is not None
    if not theirs or theirs <= mine:
        return f"as good as the next one: {other.label}"
    noise = NOISE * hypot(mine * best.mean_error, theirs * other.mean_error)
    if theirs - mine <= noise:
        return (
            "no difference from the next one beyond the noise of the simulated jobs: "
            f"{percent(1 - mine / theirs)} {ADJECTIVES[goal]}, {_paid(best, other)}"
        )
    found = [f"{percent(1 - mine / theirs)} {ADJECTIVES[goal]} than the next", _paid(best, other)]
    saved = {
        name: _share(other, keys) * other.gpu_hours - _share(best, keys) * best.gpu_hours
        for name, keys in TERMS.items()
    }
    name = max(saved, key=lambda key: saved[key])
    if saved[name] > 0:
        hours = [_share(one, TERMS[name]) * one.gpu_hours for one in (best, other)]
        found.append(f"most of the difference is {name}: {hours[0]:.3g} in place of {hours[1]:.3g}")
    return "; ".join(found)


def _paid(best: Option, other: Option) -> str:
    """GPU hours of both, and what one costs."""
    said = f"{best.gpu_hours:.3g} GPU hours in place of {other.gpu_hours:.3g}"
    prices = [
        None if one.cost_usd is None or not one.gpu_hours else f"{one.cost_usd / one.gpu_hours:.3g}"
        for one in (best, other)
    ]
    if prices[0] is None or prices[1] is None:
        return said
    if prices[0] == prices[1]:
        return f"{said}, each {prices[0]} USD"
    return f"{said}, at {prices[0]} in place of {prices[1]} USD per GPU hour"


def _share(option: Option, keys: Sequence[str]) -> float:
    found = sum(option.shares.get(key.removesuffix("_s"), 0.0) for key in keys)
    return found / option.step_time_s if option.step_time_s else 0.0


def why_on_front(option: Option, front: Sequence[Option]) -> str:
    """What an option is on the front for."""
    found = []
    if option.finish_s == min(one.finish_s for one in front):
        found.append("the fastest")
    costs = [one.cost_usd for one in front if one.cost_usd is not None]
    if costs and option.cost_usd == min(costs):
        found.append("the cheapest")
    if option.peak_memory_bytes == min(one.peak_memory_bytes for one in front):
        found.append("the least memory")
    if found:
        return ", ".join(found)
    faster = [one for one in front if one.finish_s <= option.finish_s and one is not option]
    saves = []
    if all(_cost(option) < _cost(one) for one in faster):
        saves.append("cheaper")
    if all(option.peak_memory_bytes < one.peak_memory_bytes for one in faster):
        saves.append("smaller")
    return f"{' and '.join(saves) or 'cheaper or smaller'} than all that are faster"


def _cost(option: Option) -> float:
    return float("inf") if option.cost_usd is None else option.cost_usd


def order(best: Sequence[Option], goal: str) -> str:
    """How sure it is that the best is the best, by the 90 % intervals of steps."""
    if len(best) < 2:
        return ""
    first, *others = best
    if first.low_s is None or first.high_s is None:
        return "unknown: the best one's machine is not calibrated"
    unsure = []
    for place, other in enumerate(others, 2):
        if other.low_s is None or other.high_s is None:
            return f"unknown: the machine of number {place} is not calibrated"
        worst = first.high_s / first.step_time_s * (first.value(GOALS[goal]) or 0.0)
        if other.low_s / other.step_time_s * (other.value(GOALS[goal]) or 0.0) <= worst:
            unsure.append(str(place))
    if not unsure:
        return "sure: its 90 % interval ends before those of the next ones begin"
    same = [o for o in others if o.set.get("cluster.machine") == first.set.get("cluster.machine")]
    shared = (
        "; errors of the same machine are mostly shared, so that the order is surer than that"
        if len(same) == len(others)
        else ""
    )
    return f"not sure: its 90 % interval overlaps with that of number {', '.join(unsure)}{shared}"


def percent(share: float) -> str:
    """A share, short."""
    return f"{100 * share:.3g} %"
