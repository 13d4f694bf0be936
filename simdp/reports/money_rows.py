"""Money, energy and the way to the target, for the terminal: rows of a run, columns of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = tuple[str, str]
Found = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""``cost`` and ``target`` of a result."""

DURATIONS = (("days", 86400.0, 2.0), ("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 1.0))
"""Units of long times, each from so many on."""

ENERGIES = (("GWh", 1e6), ("MWh", 1e3), ("kWh", 1.0), ("Wh", 1e-3), ("mWh", 1e-6))

LONG_SAMPLE = 1000
"""Tokens of a sample from which on money is told by tokens, not by samples."""


def duration(value: float | None, like: float | None = None) -> str:
    """Write a time that may be long, with the unit that suits it, or another time beside it."""
    if value is None:
        return "-"
    large = value if like is None else like
    for unit, size, least in DURATIONS:
        if large >= least * size:
            return f"{_three(value / size)} {unit}"
    scale, unit = (1e-3, "ms") if large >= 1e-3 else (1e-6, "us")
    return f"{value / scale:.3g} {unit}" if value else "0"


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def money(value: float | None) -> str:
    """Write US dollars with three digits."""
    if value is None:
        return "-"
    return f"{_three(value)} USD"


def energy(kwh: float | None) -> str:
    """Write an energy with three digits and the unit that suits it."""
    if kwh is None:
        return "-"
    unit, size = next((one for one in ENERGIES if kwh >= one[1]), ENERGIES[-1])
    return f"{kwh / size:.3g} {unit}"


def is_asked_for(scenario: Mapping[str, Any]) -> bool:
    """Whether a scenario itself speaks of money, energy or a target."""
    cluster, over = scenario.get("cluster") or {}, scenario.get("sweep") or {}
    keys = ("cluster.price", "cluster.power", "target")
    swept = any(key == one or key.startswith(f"{one}.") for key in over for one in keys)
    own = cluster.get("price") or cluster.get("power") or scenario.get("target")
    return bool(own) or swept


LITTLE = 0.01
"""Share of an energy by which it may be off without a word."""

WAITING_POWER = "as a waiting GPU draws 13 to 39 % of the way from rest to busy"


def rows(found: Found) -> list[Row]:
    """What a run costs by the step, and what it takes to get to its target."""
    cost, target = found
    return [*_of_target(target), *_of_cost(cost), *price([found])]


def _of_cost(cost: Mapping[str, Any]) -> list[Row]:
    if not cost:
        return []
    step, exposed = cost["step"], cost["exposed"]
    said = _both(step)
    shares = [100 * exposed[key] / step[key] for key in ("cost_usd", "energy_kwh") if step[key]]
    if shares and max(shares) >= 1:
        parts = dict.fromkeys(f"{share:.2g} %" for share in shares)
        said += f", {' and '.join(parts)} of it exposed communication and waiting"
    found = [("a step costs", said)]
    ends = cost.get("energy_between_kwh")
    if ends and ends[1] - ends[0] > LITTLE * ends[1]:
        found.append(("  energy", f"{energy(ends[0])} to {energy(ends[1])}, {WAITING_POWER}"))
    for key, name in (("million_samples", "samples"), ("million_tokens", "tokens")):
        if key in cost:
            found.append((f"a million {name}", _both(cost[key])))
    return found


def _of_target(target: Mapping[str, Any] | None) -> list[Row]:
    if target is None:
        return []
    time = target["time_s"]
    if time is None:
        return [("to the target", "the loss was not reached within the run's steps")]
    said = f"{duration(time['mean'])} in {target['steps']:,} steps"
    if time.get("p95", time["mean"]) > time["mean"]:
        low, high = (duration(time[end], time["mean"]) for end in ("p5", "p95"))
        said += f", 90 % of runs in {low} to {high}"
    bills = {key: (target[key] or {}).get("mean") for key in ("cost_usd", "energy_kwh")}
    costs = _both(bills)
    return [("to the target", said), *[("  costs", costs)] * bool(costs)]


def _both(bill: Mapping[str, float | None]) -> str:
    """Money and energy, as far as they are known."""
    usd, kwh = bill["cost_usd"], bill["energy_kwh"]
    said = [money(usd)] * (usd is not None) + [energy(kwh)] * (kwh is not None)
    return " and ".join(said)


def price(found: Sequence[Found]) -> list[Row]:
    """Whose prices costs were made of, with the date of a list price; once for many points."""
    said = dict[str | None, dict[str, None]]()  # figures by date, in the order in which they come
    for cost, _ in found:
        each = cost.get("price_usd_per_h")
        if each is not None:
            said.setdefault(cost.get("price_date"), {})[f"{each:.4g}"] = None
    texts = [
        f"{', '.join(figures)} USD/h a device" + (f", list price of {date}" if date else "")
        for date, figures in said.items()
    ]
    return [("price", "; ".join(texts))] if texts else []


def columns(found: Sequence[Found]) -> dict[str, Callable[[Found], str]]:
    """Columns of a table with a row per point: of the target, or else of a million samples."""
    if any(target is not None for _, target in found):
        made: dict[str, Callable[[Found], str]] = {"to target": lambda one: _time(one[1])}
        for key, name in (("cost_usd", "USD"), ("energy_kwh", "kWh")):
            if any((target or {}).get(key) for _, target in found):
                made[name] = lambda one, key=key: _figure(_mean(one[1], key))  # type: ignore[misc]
        return made
    long = all("million_tokens" in cost and _are_long(cost) for cost, _ in found)
    per, of = ("million_tokens", "Mtok") if long else ("million_samples", "M")
    return {
        f"{name}/{of}": lambda one, key=key: _figure(one[0].get(per, {}).get(key))  # type: ignore[misc]
        for key, name in (("cost_usd", "USD"), ("energy_kwh", "kWh"))
        if any(cost.get(per, {}).get(key) for cost, _ in found)
    }


def _are_long(cost: Mapping[str, Any]) -> bool:
    samples, tokens = cost["million_samples"], cost["million_tokens"]
    key = next(key for key, value in samples.items() if value is not None)
    return float(samples[key]) >= LONG_SAMPLE * float(tokens[key])


def _time(target: Mapping[str, Any] | None) -> str:
    time = (target or {}).get("time_s")
    return "never" if target is not None and time is None else duration((time or {}).get("mean"))


def _mean(target: Mapping[str, Any] | None, key: str) -> float | None:
    bills = (target or {}).get(key) or {}
    return bills.get("mean")


def _figure(value: float | None) -> str:
    return "-" if value is None else _three(value)
