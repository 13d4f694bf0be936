"""Rows and sentences about a result: rates, verdicts, costs, money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill, shorten
from typing import Any, NamedTuple

from simdp.cluster import Cluster
from simdp.keys import short_key, written
from simdp.reports import figures
from simdp.reports.figures import (
    Row,
    TableCell,
    duration,
    money,
    nbytes,
    percent,
    seconds,
    sentence,
)
from simdp.results.metrics import LABELS, PART_TITLES, Metrics, exposed_by_collective
from simdp.results.result import Advice, ComputePart, Result, StragglerCost, Study
from simdp.results.trace import TraceToCome
from simdp.units import parse

LEAST_SHARE = 0.005  # least share of a step that is listed
LEAST_IDLE = 0.5  # idle share of a node's network cards above which a row is shown
NEARLY_ALL = 0.995  # share of a step from which on three digits are written
MOST_CAUSES = 4  # stragglers with a line each
FEW = 100  # samples/s below which three digits are written, not whole numbers

# names of the kinds of compute of `simdp.engine.compute.call_times`
COMPUTE_PARTS = {
    "matrix_products": "matrix products",
    "attention": "attention",
    "memory_bound": "kernels bound by memory",
    "recompute": "recompute",
    "launches": "launches",
    "slowed": "slowed by stragglers or communication",
}

# kinds of compute whose share of the peak is shown
BOUND_BY_ARITHMETIC = ("matrix_products", "attention")
FOR_EXPERTS = ("undetermined",)  # remarks of a verbose summary only; result.json has all
WHOLE = ("caveats", "network")  # remarks that are never shortened
# letters of a line beside a row's name; and of a remark, whose rest is in result.json
CELL, MOST_LETTERS = 53, 150


def rates(metrics: Metrics) -> list[str]:
    """Write the throughput in samples/s, and in tokens/s if there are any."""
    throughput, tokens = metrics.throughput_samples_per_s, metrics.tokens_per_s
    per_gpu = metrics.tokens_per_s_per_gpu
    few = throughput is not None and throughput < FEW
    samples = "-" if throughput is None else f"{throughput:{'.3g' if few else ',.0f'}} samples/s"
    if tokens is not None:
        per_device = "" if per_gpu in (None, tokens) else f", {per_gpu:,.0f} per device"
        return [samples, f"{tokens:,.0f} tokens/s{per_device}"]
    return [samples]


def mfu(metrics: Metrics) -> list[Row]:
    """Write MFU, and HFU if it differs."""
    share, hardware = metrics.mfu, metrics.hfu
    if share is None:
        return []
    again = "" if hardware in (None, share) else f"; HFU {100 * hardware:.3g} %"
    return [Row("mfu", "MFU", f"{100 * share:.3g} % of the devices' peak{again}")]


def mfu_parts(result: Result) -> list[Row]:
    """List the parts of a step that are not useful arithmetic, the largest compute first."""
    shares = step_shares(result)
    if not shares:
        return []
    texts = [
        f"{name} {figures.percent(share)}"
        + (f" (at {figures.percent(rate)} of the peak)" if rate is not None else "")
        for name, share, rate in shares
        if share >= LEAST_SHARE
    ]
    return [Row("mfu_parts", "where the MFU goes", f"of a step: {', '.join(texts)}")]


def step_shares(result: Result) -> list[tuple[str, float, float | None]]:
    """Split a step into kinds of kernels and non-compute parts; shares add up to 1.

    Each has a name, a share, and if bound by arithmetic its share of the devices' peak. Empty
    without an MFU or kernels.
    """
    m = result.metrics
    step_time = m.step_time_s
    if not result.compute_parts or m.mfu is None or not step_time:
        return []
    parts = [ComputePart(**part) for part in result.compute_parts]
    parts.sort(key=lambda part: -part.seconds)
    shares: list[tuple[str, float, float | None]] = [
        (COMPUTE_PARTS[part], spent / step_time, rate if part in BOUND_BY_ARITHMETIC else None)
        for part, spent, rate in parts
    ]
    rest = [(title, m[key] / step_time, None) for key, title in PART_TITLES.items()]
    return [*shares, *rest[1:]]


def verdict(lines: Sequence[str]) -> list[Row]:
    """Make a row of a verdict's sentences; none without any."""
    return [Row("verdict", "verdict", " ".join(lines))] if lines else []


def interval(metrics: Metrics) -> list[Row]:
    """Write the 90 % interval of a step, if it is known."""
    if metrics.interval_s is None:
        return []
    ends = " to ".join(map(seconds, metrics.interval_s))
    return [Row("interval", LABELS["interval_s"].title, ends)]


def without_stragglers(metrics: Metrics) -> list[Row]:
    """Write the time of a step without stragglers, if there are any."""
    even, step_time = metrics.without_stragglers_s, metrics.step_time_s
    if even is None or not step_time:
        return []
    return [Row("without_stragglers", "without stragglers", less(even, step_time))]


def all_hidden(metrics: Metrics) -> list[Row]:
    """Write the time of a step with full overlap, if communication is exposed."""
    step_time, exposed = metrics.step_time_s, metrics.exposed_comm_s
    if not step_time or exposed <= LEAST_SHARE * step_time:
        return []
    return [Row("all_hidden", "if all comm was hidden", less(step_time - exposed, step_time))]


def lost(result: Result) -> list[Row]:
    """Write the cost of each of several stragglers, and the rank that is slowest most often."""
    step_time, rows = result.metrics.step_time_s, list[Row]()
    costs = result.straggler_costs
    losses = [(loss, loss.seconds) for loss in costs if loss.seconds is not None]
    for loss, saved in losses[:MOST_CAUSES] if len(costs) > 1 and step_time else ():
        time = less(step_time - saved, step_time)
        rows.append(Row("lost", f"  without {loss.cause}", f"{time}{_on(loss)}"))
    if len(losses) > MOST_CAUSES and rows:
        rows.append(Row("lost", "", f"and {len(losses) - MOST_CAUSES} others: see result.json"))
    if result.slowest and any(loss.ranks is None for loss in costs):
        rows.append(Row("slowest", "slowest most often", _slowest_words(result)))
    return rows


def _on(straggler: StragglerCost) -> str:
    """Name the ranks or the node of a straggler; empty if it is on all ranks."""
    ranks, nodes = straggler.ranks, straggler.nodes
    if not ranks or not nodes:
        return ""
    if len(ranks) > 2:
        return f" (node {nodes[0]})"
    return f" (rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))})"


def _slowest_words(result: Result) -> str:
    """Name the rank, and the node, that is slowest most often."""
    ranks, nodes = result.slowest_ranks, Counter[int]()
    most_often = max(ranks, key=lambda rank: rank.steps)
    for rank in ranks:
        nodes[rank.node] += rank.steps
    text = f"rank {most_often.rank}, in {most_often.steps} of {nodes.total()} steps"
    node, times = nodes.most_common(1)[0]
    cluster = result.scenario["cluster"]
    if cluster.get("devices_per_node") and cluster["devices_per_node"] < result.world_size:
        text += f"; node {node}, in {times}"
    return text


def less(value: float, step_time: float) -> str:
    """Write a time and how much shorter than a step it is."""
    share, word = abs(1 - value / step_time), "less" if value < step_time else "more"
    if share < LEAST_SHARE:
        return f"{seconds(value)}, about the same"
    return f"{seconds(value)}, {100 * share:{'.3g' if share >= NEARLY_ALL else '.2g'}} % {word}"


def gradient_noise(noise: dict[str, Any] | None) -> list[Row]:
    """Write the gradient noise scale, if it was measured."""
    if noise is None:
        return []
    scale = noise["noise_scale"]
    if scale is None:
        text = f"chance hides the signal in {noise['steps']} steps; try more"
        return [Row("gradient_noise", "gradient noise", text)]
    text = (
        f"scale {scale:,.3g} samples, about the critical batch; this one takes "
        f"{noise['samples']:.3g} times the fewest samples, {noise['steps_taken']:.3g} times the "
        "fewest steps"
    )
    return [Row("gradient_noise", "gradient noise", text)]


def cards(result: Result) -> list[Row]:
    """Warn that most network cards of a node are idle, with the remedy."""
    there = result.network.get("cards")
    if not there or there["used"] > LEAST_IDLE * there["of"]:
        return []
    text = (
        f"{there['used']} of {there['of']} of a node are used: its ring leaves a node by one; "
        "NCCL uses all (collectives.cost: nccl), as does collectives.all_reduce: hierarchical"
    )
    if result.scenario.get("collectives", {}).get("all_reduce", {}).get("kind") != "ring":
        text = f"{there['used']} of {there['of']} of a node are used; collectives.cost: nccl"
        text += " tells what NCCL makes of them"
    return [Row("cards", "network cards", text)]


def known(results: Sequence[Result], verbose: bool = False) -> list[Row]:
    """List remarks on the reliability of the hardware's figures, once for all points.

    Constants that a calibration leaves undetermined are listed with ``verbose`` only: the interval
    of a step covers them.
    """
    lines: dict[tuple[str, str], None] = {}
    for result in results:
        shown = ((k, v) for k, v in result.remarks.items() if verbose or k not in FOR_EXPERTS)
        lines.update(dict.fromkeys(shown))
    needs = {text: text.split()[1:3] for name, text in lines if name == "host memory"}
    for text in sorted(needs, key=lambda text: parse(" ".join(needs[text]), "data size"))[:-1]:
        del lines["host memory", text]  # only the largest need of all points is listed
    return [
        Row(name, name, text if name in WHOLE else shorten(text, MOST_LETTERS, placeholder=" ..."))
        for name, text in lines
    ]


def advice(advice: Advice | None) -> list[Row]:
    """List the changes that would help, and the number that was simulated."""
    if advice is None or not advice.num_tried:
        return []
    tried = f"{advice.num_tried} change{'s' * (advice.num_tried > 1)} simulated, times alone"
    if not advice.lines:
        return [Row("advice", "would help", f"none of {tried}")]
    lines = [Row("advice", "would help", line) for line in advice.lines]
    return [*lines, Row("advice_from", "", f"({tried})")]


def wrapped(rows: Sequence[Row], cell: int = CELL) -> list[tuple[str, str]]:
    """Wrap each row's text to the width of a cell."""
    return [
        (row.label, fill(row.text, cell, break_long_words=False, break_on_hyphens=False))
        for row in rows
    ]


def lines(rows: Sequence[Row], width: int) -> str:
    """Write rows as lines of text, for below a table."""
    return "\n".join(
        fill(
            f"{row.label}: {row.text}" if row.label else row.text,
            width,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for row in rows
    )


# Verdicts -----------------------------------------------------------------------------------------

LEAST_VERDICT_SHARE = 0.01  # least share of a step that a verdict names
GOOD = 0.8  # least scaling efficiency, or share of compute, of a good verdict
LEAST_GROWTH = 0.05  # least growth of compute per sample over the smallest size that is named
MOST_COLLECTIVES = 2  # collectives that are named one by one
MAX_SPANS = 2**20  # longest trace whose exposed communication is split by collective


class VerdictText(NamedTuple):
    """Sentences of a verdict, the main one first."""

    lines: list[str]  # whole sentences
    good: bool  # whether compute takes `GOOD` of the time, or the efficiency is at least `GOOD`


def of_run(result: Result) -> VerdictText:
    """Write the verdict on a run: shares of a step, costs of stragglers."""
    m = result.metrics
    step_time = m.step_time_s
    if not step_time:
        return VerdictText([], True)
    losses = _losses(result)
    work = (m.compute_s + m.update_s) / step_time
    work_text = f"Of a step of {seconds(step_time)}, {percent(work)} is compute and update"
    lines = [*does_not_fit(result), f"{work_text}{''.join(f', {text}' for text in losses)}."]
    lines += [sentence(text, ".") for text in straggler_costs(result)]
    return VerdictText(lines, work >= GOOD and m.fits_memory is not False)


def does_not_fit(result: Result) -> list[str]:
    """Report a model that does not fit: by how much, or that it is its offloaded state."""
    if result.metrics.fits_memory is not False:
        return []
    cluster = Cluster.model_validate(result.scenario["cluster"])
    rooms = [device.memory / cluster.ranks_per_device for device in cluster.devices()]
    peaks = result.metrics.peak_memory_bytes
    worst = max(range(len(peaks)), key=lambda rank: peaks[rank] / rooms[rank])
    over, whole = peaks[worst] - rooms[worst], "rank" if cluster.ranks_per_device > 1 else "GPU"
    needs = f"the fullest {whole} needs {nbytes(peaks[worst])} of {nbytes(rooms[worst])}"
    why = f"{needs}, {nbytes(over)} too much" if over > 0 else "GPUs or hosts lack the memory"
    return [
        f"The model does not fit: {why}; `simdp fits` lists what would. What follows is as if it "
        "fitted."
    ]


def of_sweep(
    study: Study, best: int | None, rates: Sequence[float | None], unit: str
) -> VerdictText:
    """Write the verdict on a sweep: throughput, losses and scaling limit of its best point.

    ``best``, ``rates`` and ``unit`` are those of `simdp.reports.sweep_table.best_point`.
    """
    if best is None or not (rate := rates[best]):
        return VerdictText([], True)
    point, first = study.points[best], rates[0]
    group = _of_sizes(study, point)
    lines, good = does_not_fit(point), True
    fitting = [other for other in study.points if other.metrics.fits_memory is not False]
    few = f"{len(fitting)} points that fit" if 0 < len(fitting) < len(study.points) else ""
    fastest = f"The fastest of {few or f'{len(study.points)} points'} is {_set_in_words(point)}"
    if len(group) > 1 and len(study.points) > len(group):  # sizes of several methods
        lines.append(f"{fastest}.")
    if len(group) > 1:
        lines += _scaling(group, point)
        good = (point.metrics.scaling_efficiency or 0.0) >= GOOD
    else:
        ratio = f", {rate / first:.3g} times the first point's" if first and best else ""
        losses = _losses(point)
        lost = f"; of each step {', '.join(losses)}" if losses else ""
        lines.append(f"{fastest}: {figures.short(rate)} {unit}{ratio}{lost}.")
    for other in study.points:
        where = "" if other is point else f" at {_set_in_words(other)}"
        lines += [sentence(cost, f"{where}.") for cost in straggler_costs(other)]
    return VerdictText(lines, good and point.metrics.fits_memory is not False)


def _set_in_words(point: Result) -> str:
    """Name a point by the keys that it sets: ``"world_size 8, strategy ddp"``."""
    return ", ".join(f"{short_key(key)} {written(value)}" for key, value in point.set.items())


def _of_sizes(study: Study, point: Result) -> list[Result]:
    """List the points that differ from one in world size only, the smallest first."""
    key = "cluster.world_size"
    if key not in point.set or point.metrics.scaling_efficiency is None:
        return []
    rest = {k: v for k, v in point.set.items() if k != key}
    group = [p for p in study.points if {k: v for k, v in p.set.items() if k != key} == rest]
    return sorted(group, key=lambda member: member.world_size)


def _scaling(group: Sequence[Result], best: Result) -> list[str]:
    """Write the speed-up and losses of a group's fastest size, and the limit of good scaling."""
    base, n = group[0], best.world_size
    efficiencies = {member.world_size: member.metrics.scaling_efficiency or 0.0 for member in group}
    efficiency = efficiencies[n]
    ratio = n / base.world_size
    of = f"{ratio:g}" if base.world_size == 1 else f"{ratio:g} from {base.world_size} GPUs"
    speedup_text = f"{n} GPUs: {efficiency * ratio:.3g}x of {of} ({percent(efficiency)})"
    if ends := best.metrics.interval_s:
        low, high = map(seconds, ends)
        speedup_text += (
            f", a step takes {seconds(best.metrics.step_time_s)} (90 %: {low} to {high})"
        )
    losses = _losses(best)
    if growth := _growth(best, base):
        losses.append(growth)
    lines = [speedup_text + (f"; of each step {', '.join(losses)}." if losses else ".")]
    rates = {size: value * size for size, value in efficiencies.items()}
    larger = [size for size in rates if size > n]
    if larger and max(rates[size] for size in larger) < rates[n]:
        lines.append(f"More GPUs are no faster: {larger[0]} are slower than {n}.")
    enough = [value >= GOOD for value in efficiencies.values()]
    limit = f"{100 * GOOD:.0f} %"
    if all(enough):
        lines.append(f"Efficiency stays above {limit} at every size.")
    else:
        place = enough.index(False)
        below = group[place]
        lines.append(
            f"Efficiency stays above {limit} up to {group[place - 1].world_size}, and is "
            f"{percent(below.metrics.scaling_efficiency)} at {below.world_size}."
        )
    return lines


def _growth(point: Result, base: Result) -> str:
    """Write the growth of compute per sample over the smallest size, if large enough."""
    times = [
        member.metrics.compute_s
        * member.world_size
        / (member.metrics.throughput_samples_per_s * member.metrics.step_time_s)
        if member.metrics.throughput_samples_per_s and member.metrics.step_time_s
        else 0.0
        for member in (point, base)
    ]
    if not times[1] or times[0] < (1 + LEAST_GROWTH) * times[1]:
        return ""
    more = percent(times[0] / times[1] - 1)
    return f"compute of a sample takes {more} longer than on {base.world_size}"


def _losses(result: Result) -> list[str]:
    """List the parts of a step that are not compute with their shares, the largest first."""
    m, step_time = result.metrics, result.metrics.step_time_s
    parts = [(value, name) for value, name in _exposed(result)]
    parts.append((m.wait_s, f"waits for {_slow_ones(result)}"))
    parts.append((m.other_s, "is host, copies and input"))
    return [
        f"{percent(value / step_time)} {name}"
        for value, name in sorted(parts, key=lambda pair: -pair[0])
        if value >= LEAST_VERDICT_SHARE * step_time
    ]


def _exposed(result: Result) -> list[tuple[float, str]]:
    """Split exposed communication by collective if there is a short enough trace."""
    whole, n = result.metrics.exposed_comm_s, result.world_size
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
    if not named or rest < -LEAST_VERDICT_SHARE * whole:
        return [(whole, "is exposed communication")]
    return [*named, (rest, "is other exposed communication")]


def _where(result: Result, group_size: int) -> str:
    """Write whether a collective crosses nodes, if there are several."""
    cluster, n = result.scenario["cluster"], result.world_size
    per_node = (cluster.get("devices_per_node") or n) * cluster.get("ranks_per_device", 1)
    if per_node >= n:
        return ""
    return " between nodes" if group_size > per_node else " in groups" if group_size < n else ""


def _slow_ones(result: Result) -> str:
    """Name the stragglers that cause waiting; else "slower ranks"."""
    names = [name_of(loss) for loss in result.straggler_costs if loss.ranks]
    if not names or len(names) < len(result.lost):
        return "slower ranks"
    return " and ".join(dict.fromkeys(names))


def straggler_costs(result: Result) -> list[str]:
    """List the cost of each straggler above `LEAST_VERDICT_SHARE`, the highest first."""
    step_time = result.metrics.step_time_s
    saved = [
        (straggler.seconds, name_of(straggler))
        for straggler in result.straggler_costs
        if straggler.seconds is not None
    ]
    saved.sort(key=lambda cost: -cost[0])
    return [
        f"{name} costs {percent(cost / step_time)} of a step ({seconds(cost)})"
        for cost, name in saved
        if step_time and cost >= LEAST_VERDICT_SHARE * step_time
    ]


def name_of(straggler: StragglerCost) -> str:
    """Name a straggler by its ranks, its node, or its kind if it is on all ranks."""
    cause, ranks, nodes, _ = straggler
    if not ranks or not nodes:
        return f"the {cause} straggler"
    if cause == "degraded_link" and len(ranks) == 2:
        return f"the degraded link of ranks {ranks[0]} and {ranks[1]}"
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"node {nodes[0]}"
    if cause == "degraded_link":
        return f"the degraded links of {where}"
    return f"the straggler {where}" if len(ranks) == 1 else f"the slow {where}"


# Money rows ---------------------------------------------------------------------------------------

Found = tuple[Mapping[str, Any], Mapping[str, Any] | None]  # ``cost`` and ``target`` of a result
LONG_SAMPLE = 1000  # tokens per sample from which on money is given per token


def is_asked_for(scenario: Mapping[str, Any]) -> bool:
    """Return whether a scenario sets or sweeps a price, a power or a target."""
    cluster, over = scenario.get("cluster") or {}, scenario.get("sweep") or {}
    keys = ("cluster.price", "cluster.power", "target")
    swept = any(key == billed or key.startswith(f"{billed}.") for key in over for billed in keys)
    return bool(cluster.get("price") or cluster.get("power") or scenario.get("target")) or swept


LITTLE = 0.01  # least relative width of an energy's interval that is shown
WAITING_POWER = "as a waiting GPU draws 13 to 39 % of the way from rest to busy"


def rows(billed: Found) -> list[Row]:
    """Write the costs of a step, and time and costs to the target."""
    cost, target = billed
    return [*_of_target(target), *_of_cost(cost), *price([billed])]


def _of_cost(cost: Mapping[str, Any]) -> list[Row]:
    if not cost:
        return []
    step, exposed = cost["step"], cost["exposed"]
    text = _both(step)
    shares = [100 * exposed[key] / step[key] for key in ("cost_usd", "energy_kwh") if step[key]]
    if shares and max(shares) >= 1:
        parts = dict.fromkeys(f"{share:.2g} %" for share in shares)
        text += f", {' and '.join(parts)} of it exposed communication and waiting"
    rows = [Row("step_cost", "a step costs", text)]
    ends = cost.get("energy_between_kwh")
    if ends and ends[1] - ends[0] > LITTLE * ends[1]:
        text = f"{figures.energy(ends[0])} to {figures.energy(ends[1])}, {WAITING_POWER}"
        rows.append(Row("energy", "  energy", text))
    for key, name in (("million_samples", "samples"), ("million_tokens", "tokens")):
        if key in cost:
            rows.append(Row(key, f"a million {name}", _both(cost[key])))
    return rows


def _of_target(target: Mapping[str, Any] | None) -> list[Row]:
    if target is None:
        return []
    time = target["time_s"]
    if time is None:
        text = "the loss was not reached within the run's steps"
        return [Row("target", "to the target", text)]
    text = f"{duration(time['mean'])} in {target['steps']:,} steps"
    if time.get("p95", time["mean"]) > time["mean"]:
        low, high = (duration(time[end], time["mean"]) for end in ("p5", "p95"))
        text += f", 90 % of runs in {low} to {high}"
    bills = {key: (target[key] or {}).get("mean") for key in ("cost_usd", "energy_kwh")}
    costs = _both(bills)
    bill = [Row("target_cost", "  costs", costs)] * bool(costs)
    return [Row("target", "to the target", text), *bill]


def _both(bill: Mapping[str, float | None]) -> str:
    """Join money and energy, each if known."""
    usd, kwh = bill["cost_usd"], bill["energy_kwh"]
    figures_known = [money(usd)] * (usd is not None) + [figures.energy(kwh)] * (kwh is not None)
    return " and ".join(figures_known)


def price(billed: Sequence[Found]) -> list[Row]:
    """Write the prices behind the costs, with the date of list prices; once for many points."""
    by_date: dict[str | None, dict[str, None]] = {}  # figures by date, in order of first use
    for cost, _ in billed:
        per_hour = cost.get("price_usd_per_h")
        if per_hour is not None:
            by_date.setdefault(cost.get("price_date"), {})[f"{per_hour:.4g}"] = None
    texts = [
        f"{', '.join(prices)} USD/h a device" + (f", list price of {date}" if date else "")
        for date, prices in by_date.items()
    ]
    return [Row("price", "price", "; ".join(texts))] if texts else []


def columns(billed: Sequence[Found]) -> dict[str, Callable[[Found], TableCell]]:
    """Make columns of time and costs to the target, or else of costs per million samples."""
    if any(target is not None for _, target in billed):
        made: dict[str, Callable[[Found], TableCell]] = {"to target": lambda bill: _time(bill[1])}
        for key, name in (("cost_usd", "USD"), ("energy_kwh", "kWh")):
            if any((target or {}).get(key) for _, target in billed):
                made[name] = lambda bill, key=key: figures.three_digits(_mean(bill[1], key))  # type: ignore[misc]
        return made
    long = all("million_tokens" in cost and _are_long(cost) for cost, _ in billed)
    per, of = ("million_tokens", "Mtok") if long else ("million_samples", "M")
    return {
        f"{name}/{of}": lambda bill, key=key: figures.three_digits(bill[0].get(per, {}).get(key))  # type: ignore[misc]
        for key, name in (("cost_usd", "USD"), ("energy_kwh", "kWh"))
        if any(cost.get(per, {}).get(key) for cost, _ in billed)
    }


def _are_long(cost: Mapping[str, Any]) -> bool:
    samples, tokens = cost["million_samples"], cost["million_tokens"]
    key = next(key for key, value in samples.items() if value is not None)
    return float(samples[key]) >= LONG_SAMPLE * float(tokens[key])


def _time(target: Mapping[str, Any] | None) -> TableCell:
    time = (target or {}).get("time_s")
    never = target is not None and time is None
    return TableCell("never") if never else duration((time or {}).get("mean"))


def _mean(target: Mapping[str, Any] | None, key: str) -> float | None:
    return ((target or {}).get(key) or {}).get("mean")
