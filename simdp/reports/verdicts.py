"""Verdict: what a run or a sweep loses, where, and to what, in a few sentences.

The terminal prints them above the other rows, the page in its first box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simdp.reports.figures import percent, seconds, short
from simdp.results.comparison import short_key, written
from simdp.results.metrics import exposed_by_collective
from simdp.results.result import Result, Study
from simdp.results.trace import TraceToCome

LEAST_SHARE = 0.01
"""Part of a step below which a loss is not named."""

GOOD = 0.8
"""Scaling efficiency from which on a size is worth its devices."""

LEAST_GROWTH = 0.05
"""Part by which compute per sample must grow over the smallest size to be named."""

MOST_COLLECTIVES = 2
"""Collectives that are named one by one."""

MAX_SPANS = 2**20
"""Of larger traces the exposed communication is not split by collective."""


class Verdict(NamedTuple):
    """Sentences, the main one first, and whether nothing is amiss.

    Attributes
    ----------
    lines : list of str
        Whole sentences.
    good : bool
        Whether most of the time is spent on compute, or the efficiency is `GOOD`.
    """

    lines: list[str]
    good: bool


def of_run(result: Result) -> Verdict:
    """What a step of one run is spent on, and what its stragglers cost."""
    m = result.metrics
    step_time = m["step_time_s"]
    if not step_time:
        return Verdict([], True)
    losses = _losses(result)
    work = (m["compute_s"] + m["update_s"]) / step_time
    said = f"Of a step of {seconds(step_time)}, {percent(work)} is compute and update"
    lines = [f"{said}{''.join(f', {one}' for one in losses)}."]
    lines += [f"{_sentence(one)}." for one in straggler_costs(result)]
    return Verdict(lines, work >= GOOD)


def of_sweep(study: Study, best: int | None, rates: Sequence[float | None], unit: str) -> Verdict:
    """What the best point of a sweep reaches and loses, and how far it pays to go.

    Parameters
    ----------
    study : Study
        Of a sweep.
    best, rates, unit
        As from `simdp.reports.sweep_table.best_point`.
    """
    if best is None or not (rate := rates[best]):
        return Verdict([], True)
    point, first = study.points[best], rates[0]
    group = _of_sizes(study, point)
    lines, good = list[str](), True
    if len(group) > 1 and len(study.points) > len(group):  # sizes of several methods
        lines.append(f"The fastest of {len(study.points)} points is {_set_in_words(point)}.")
    if len(group) > 1:
        lines += _scaling(group, point)
        good = (point.metrics["scaling_efficiency"] or 0.0) >= GOOD
    else:
        text = f"The fastest of {len(study.points)} points is {_set_in_words(point)}"
        ratio = f", {rate / first:.3g} times the first point's" if first and best else ""
        losses = _losses(point)
        lost = f"; of each step {', '.join(losses)}" if losses else ""
        lines.append(f"{text}: {short(rate)} {unit}{ratio}{lost}.")
    for one in study.points:
        where = "" if one is point else f" at {_set_in_words(one)}"
        lines += [f"{_sentence(cost)}{where}." for cost in straggler_costs(one)]
    return Verdict(lines, good)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _set_in_words(point: Result) -> str:
    """What a point sets: ``"world_size 8, strategy ddp"``."""
    return ", ".join(f"{short_key(key)} {written(value)}" for key, value in point.set.items())


def _of_sizes(study: Study, point: Result) -> list[Result]:
    """Points that differ from one in the world size only, the smallest first."""
    key = "cluster.world_size"
    if key not in point.set or point.metrics["scaling_efficiency"] is None:
        return []
    rest = {k: v for k, v in point.set.items() if k != key}
    found = [p for p in study.points if {k: v for k, v in p.set.items() if k != key} == rest]
    return sorted(found, key=lambda one: one.world_size)


def _scaling(group: Sequence[Result], best: Result) -> list[str]:
    """What the fastest size of a group reaches, what it loses, and up to where it pays."""
    base, n = group[0], best.world_size
    efficiency = best.metrics["scaling_efficiency"]
    ratio = n / base.world_size
    of = f"{ratio:g}" if base.world_size == 1 else f"{ratio:g} from {base.world_size} GPUs"
    said = f"{n} GPUs: {efficiency * ratio:.3g}x of {of} ({percent(efficiency)})"
    if ends := best.metrics.get("interval_s"):
        low, high = map(seconds, ends)
        said += f", a step takes {seconds(best.metrics['step_time_s'])} (90 %: {low} to {high})"
    losses = _losses(best)
    if growth := _growth(best, base):
        losses.append(growth)
    lines = [said + (f"; of each step {', '.join(losses)}." if losses else ".")]
    if larger := [one.world_size for one in group if one.world_size > n]:
        lines.append(f"More GPUs are no faster: {larger[0]} are slower than {n}.")
    enough = [one.metrics["scaling_efficiency"] >= GOOD for one in group]
    limit = f"{100 * GOOD:.0f} %"
    if all(enough):
        lines.append(f"Efficiency stays above {limit} at every size.")
    else:
        place = enough.index(False)
        below = group[place]
        lines.append(
            f"Efficiency stays above {limit} up to {group[place - 1].world_size}, and is "
            f"{percent(below.metrics['scaling_efficiency'])} at {below.world_size}."
        )
    return lines


def _growth(point: Result, base: Result) -> str:
    """Compute that a sample takes longer than at the smallest size, if it does."""
    times = [
        one.metrics["compute_s"]
        * one.world_size
        / (one.metrics["throughput_samples_per_s"] * one.metrics["step_time_s"])
        if one.metrics["throughput_samples_per_s"] and one.metrics["step_time_s"]
        else 0.0
        for one in (point, base)
    ]
    if not times[1] or times[0] < (1 + LEAST_GROWTH) * times[1]:
        return ""
    more = percent(times[0] / times[1] - 1)
    return f"compute of a sample takes {more} longer than on {base.world_size}"


def _losses(result: Result) -> list[str]:
    """Parts of a step that are not compute, with their shares, the largest first."""
    m, step_time = result.metrics, result.metrics["step_time_s"]
    found = [(value, name) for value, name in _exposed(result)]
    found.append((m["wait_s"], f"waits for {_slow_ones(result)}"))
    found.append((m["other_s"], "is host, copies and input"))
    return [
        f"{percent(value / step_time)} {name}"
        for value, name in sorted(found, key=lambda pair: -pair[0])
        if value >= LEAST_SHARE * step_time
    ]


def _exposed(result: Result) -> list[tuple[float, str]]:
    """Exposed communication by collective, where a trace says which; else in one."""
    whole, n = result.metrics["exposed_comm_s"], result.world_size
    trace = result.trace
    if not whole or trace is None or isinstance(trace, TraceToCome) or len(trace) > MAX_SPANS:
        return [(whole, "is exposed communication")]
    num_steps = max((block.step for block in trace.blocks), default=0) + 1
    split = exposed_by_collective(trace, n, num_steps)
    named = [
        (value, f"is exposed {collective}{_where(result, size)}")
        for (collective, size), value in list(split.items())[:MOST_COLLECTIVES]
    ]
    rest = whole - sum(value for value, _ in named)
    if not named or rest < -LEAST_SHARE * whole:
        return [(whole, "is exposed communication")]
    return [*named, (rest, "is other exposed communication")]


def _where(result: Result, group_size: int) -> str:
    """Whether a collective leaves its node, where there are several nodes."""
    cluster, n = result.scenario["cluster"], result.world_size
    per_node = (cluster.get("devices_per_node") or n) * cluster.get("ranks_per_device", 1)
    if per_node >= n:
        return ""
    return " between nodes" if group_size > per_node else " in groups" if group_size < n else ""


def _slow_ones(result: Result) -> str:
    """Who is waited for: the stragglers that the scenario has on some ranks, or slower ranks."""
    found = list[str]()
    for one in result.lost:
        if one["ranks"]:
            found.append(name_of(one))
    if not found or len(found) < len(result.lost):
        return "slower ranks"
    return " and ".join(dict.fromkeys(found))


def straggler_costs(result: Result) -> list[str]:
    """What each straggler costs that costs anything worth a word, the dearest first."""
    step_time = result.metrics["step_time_s"]
    known = [one for one in result.lost if one["seconds"] is not None]
    known.sort(key=lambda one: -one["seconds"])
    return [
        f"{name_of(one)} costs {percent(one['seconds'] / step_time)} of a step "
        f"({seconds(one['seconds'])})"
        for one in known
        if step_time and one["seconds"] >= LEAST_SHARE * step_time
    ]


def name_of(lost: dict[str, Any]) -> str:
    """Name a straggler: its ranks, or its node, or its kind where it is on all ranks."""
    ranks: list[int] = lost["ranks"] or []
    cause = str(lost["cause"])
    if not ranks:
        return f"the {cause} straggler"
    if cause == "degraded_link" and len(ranks) == 2:
        return f"the degraded link of ranks {ranks[0]} and {ranks[1]}"
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"node {lost['nodes'][0]}"
    if cause == "degraded_link":
        return f"the degraded links of {where}"
    return f"the straggler {where}" if len(ranks) == 1 else f"the slow {where}"
