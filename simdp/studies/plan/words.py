"""Words: why an option is the best, what it is on the front for, and how sure the order is."""

from __future__ import annotations

from collections.abc import Sequence

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
    """What makes an option better than the next one: the part of a step that differs most.

    Parts are counted in what the goal counts: seconds to the end, or what the devices cost or draw
    for them.
    """
    if other is None:
        return "the only one that meets the limits"
    mine, theirs = best.value(GOALS[goal]), other.value(GOALS[goal])
    assert mine is not None
    assert theirs is not None
    if not theirs or theirs <= mine:
        return f"as good as the next one: {other.label}"
    lead = f"{percent(1 - mine / theirs)} {ADJECTIVES[goal]} than the next"
    parts = {
        name: _part(other, keys, goal) - _part(best, keys, goal) for name, keys in TERMS.items()
    }
    name = max(parts, key=lambda key: parts[key])
    if parts[name] <= 0:
        return lead
    shares = [_share(one, TERMS[name]) for one in (best, other)]
    return (
        f"{lead}, most of it {name}: {percent(shares[0])} of a step in place of "
        f"{percent(shares[1])}, on {best.world_size} in place of {other.world_size} GPUs"
    )


def _share(option: Option, keys: Sequence[str]) -> float:
    found = sum(option.shares.get(key.removesuffix("_s"), 0.0) for key in keys)
    return found / option.step_time_s if option.step_time_s else 0.0


def _part(option: Option, keys: Sequence[str], goal: str) -> float:
    value = option.value(GOALS[goal])
    return _share(option, keys) * (value or 0.0)


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
        return "unknown: nobody has measured the best one's machine"
    unsure = []
    for place, other in enumerate(others, 2):
        if other.low_s is None or other.high_s is None:
            return f"unknown: nobody has measured the machine of number {place}"
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
