"""Answers of a single run for the terminal: what things cost, what is known, what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from textwrap import fill, shorten
from typing import Any

from simdp.reports import figures
from simdp.results.result import Advice, Result

Row = tuple[str, str]
Write = Callable[[float | None], str]

LEAST_SHARE = 0.005
"""Part of a step below which nothing is said of what something costs."""

LEAST_IDLE = 0.5
"""Part of a node's network cards that may be idle without a word."""

NEARLY_ALL = 0.995
"""Part of a step from which on a third digit tells it from all."""

MOST_CAUSES = 4
"""Stragglers that have a line each."""

FEW = 100
"""Samples a second below which three digits are written, not whole ones."""

COMPUTE_PARTS = {
    "matrix_products": "matrix products",
    "attention": "attention",
    "memory_bound": "kernels bound by memory",
    "recompute": "recompute",
    "launches": "launches",
    "slowed": "slowed by stragglers or communication",
}
"""Names of what compute is spent on; see `simdp.engine.compute.breakdown`."""

BOUND_BY_ARITHMETIC = ("matrix_products", "attention")
"""Parts of which the share of the peak is shown."""

FOR_EXPERTS = ("undetermined",)
"""Remarks that only a verbose summary shows; all are in result.json."""

WHOLE = ("caveats",)
"""Remarks that are printed to their end, however long they are."""

CELL, MOST_LETTERS = 53, 150
"""Letters of a line beside a row's name; and of a remark, of which the rest is in result.json."""


def rates(metrics: dict[str, Any]) -> Row:
    """What a run gets done in a second."""
    throughput, tokens = metrics["throughput_samples_per_s"], metrics.get("tokens_per_s")
    each = metrics.get("tokens_per_s_per_gpu")
    few = throughput is not None and throughput < FEW
    said = "-" if throughput is None else f"{throughput:{'.3g' if few else ',.0f'}} samples/s"
    if tokens is not None:
        said += f", {tokens:,.0f} tokens/s"
        said += "" if each in (None, tokens) else f", {each:,.0f} per device"
    return "throughput", said


def mfu(metrics: dict[str, Any]) -> list[Row]:
    """How much of the devices' peak the model's FLOPs take; with those that run again, if any."""
    share, hardware = metrics.get("mfu"), metrics.get("hfu")
    if share is None:
        return []
    again = "" if hardware in (None, share) else f"; HFU {100 * hardware:.3g} %"
    return [("MFU", f"{100 * share:.3g} % of the devices' peak{again}")]


def mfu_parts(result: Result) -> list[Row]:
    """What a step is spent on beside useful arithmetic, kernel by kernel; largest compute first."""
    found = step_shares(result)
    if not found:
        return []
    said = [
        f"{name} {figures.percent(share)}"
        + (f" (at {figures.percent(rate)} of the peak)" if rate is not None else "")
        for name, share, rate in found
        if share >= LEAST_SHARE
    ]
    return [("where the MFU goes", f"of a step: {', '.join(said)}")]


def step_shares(result: Result) -> list[tuple[str, float, float | None]]:
    """Split a step into kinds of kernels and all that is no compute, as shares that add up to 1.

    Returns
    -------
    list of (str, float, float or None)
        Name; share of the step; and for kernels bound by arithmetic the part of the devices' peak
        that they reach. Empty without an MFU, or where compute has no kernels.
    """
    m = result.metrics
    step_time = m["step_time_s"]
    if not result.compute_parts or m.get("mfu") is None or not step_time:
        return []
    parts = sorted(result.compute_parts, key=lambda one: -one["seconds"])
    found: list[tuple[str, float, float | None]] = [
        (
            COMPUTE_PARTS[one["part"]],
            one["seconds"] / step_time,
            one["of_peak"] if one["part"] in BOUND_BY_ARITHMETIC else None,
        )
        for one in parts
    ]
    rest = [(figures.PARTS[key], m[key] / step_time, None) for key in figures.PARTS]
    return [*found, *rest[1:]]


def verdict(lines: Sequence[str]) -> list[Row]:
    """The sentences of a verdict as a row; none without any."""
    return [("verdict", " ".join(lines))] if lines else []


def costs(metrics: dict[str, Any], seconds: Write) -> list[Row]:
    """What a step would take if the interval, stragglers or communication were otherwise."""
    step_time, rows = metrics["step_time_s"], list[Row]()
    ends, even = metrics.get("interval_s"), metrics.get("without_stragglers_s")
    if ends is not None:
        rows.append(("90 % interval of a step", " to ".join(map(seconds, ends))))
    if even is not None and step_time:
        rows.append(("without stragglers", less(even, step_time, seconds)))
    if step_time and metrics["exposed_comm_s"] > LEAST_SHARE * step_time:
        hidden = step_time - metrics["exposed_comm_s"]
        rows.append(("if all comm was hidden", less(hidden, step_time, seconds)))
    return rows


def lost(result: Result, seconds: Write) -> list[Row]:
    """Split what several stragglers cost by cause; say who was slowest where that is by chance."""
    step_time, rows = result.metrics["step_time_s"], list[Row]()
    known = [one for one in result.lost if one["seconds"] is not None]
    for one in known[:MOST_CAUSES] if len(result.lost) > 1 and step_time else ():
        said = less(step_time - one["seconds"], step_time, seconds)
        rows.append((f"  without {one['cause']}", f"{said}{_on(one)}"))
    if len(known) > MOST_CAUSES and rows:
        rows.append(("", f"and {len(known) - MOST_CAUSES} others: see result.json"))
    if result.slowest and any(one["ranks"] is None for one in result.lost):
        rows.append(("slowest most often", _slowest_words(result)))
    return rows


def _on(one: dict[str, Any]) -> str:
    """Where a straggler is, unless it is everywhere."""
    ranks = one["ranks"]
    if not ranks:
        return ""
    if len(ranks) > 2:
        return f" (node {one['nodes'][0]})"
    return f" (rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))})"


def _slowest_words(result: Result) -> str:
    """Who was the slowest of most steps, a rank and its node."""
    each = max(result.slowest, key=lambda one: one["steps"])
    num_steps, nodes = sum(one["steps"] for one in result.slowest), Counter[int]()
    for one in result.slowest:
        nodes[one["node"]] += one["steps"]
    said = f"rank {each['rank']}, in {each['steps']} of {num_steps} steps"
    node, times = nodes.most_common(1)[0]
    cluster = result.scenario["cluster"]
    if cluster.get("devices_per_node") and cluster["devices_per_node"] < result.world_size:
        said += f"; node {node}, in {times}"
    return said


def less(value: float, step_time: float, seconds: Write = figures.seconds) -> str:
    """Say a time, and how much less than a step it is."""
    share = 1 - value / step_time
    if share < LEAST_SHARE:
        return f"{seconds(value)}, about the same"
    return f"{seconds(value)}, {100 * share:{'.3g' if share >= NEARLY_ALL else '.2g'}} % less"


def gradient_noise(found: dict[str, Any] | None) -> list[Row]:
    """How much of the gradients is chance, where somebody asked."""
    if found is None:
        return []
    scale = found["noise_scale"]
    if scale is None:
        return [("gradient noise", f"chance hides the signal in {found['steps']} steps; try more")]
    said = (
        f"scale {scale:,.3g} samples, about the critical batch; this one takes "
        f"{found['samples']:.3g} times the fewest samples, {found['steps_taken']:.3g} times the "
        "fewest steps"
    )
    return [("gradient noise", said)]


def cards(result: Result) -> list[Row]:
    """Say where most network cards of a node carry nothing, and how to use them."""
    there = result.network.get("cards")
    if not there or there["used"] > LEAST_IDLE * there["of"]:
        return []
    said = (
        f"{there['used']} of {there['of']} of a node are used: its ring leaves a node by one; "
        "NCCL uses all (collectives.cost: nccl), as does collectives.all_reduce: hierarchical"
    )
    if result.scenario.get("collectives", {}).get("all_reduce", {}).get("kind") != "ring":
        said = f"{there['used']} of {there['of']} of a node are used; collectives.cost: nccl"
        said += " tells what NCCL makes of them"
    return [("network cards", said)]


def known(results: Sequence[Result], verbose: bool = False) -> list[Row]:
    """List how reliable the hardware's figures are, once for all points of a sweep.

    Constants that a calibration leaves undetermined are listed with ``verbose`` only: the interval
    of a step covers them.
    """
    found: dict[Row, None] = {}
    for result in results:
        shown = ((k, v) for k, v in result.remarks.items() if verbose or k not in FOR_EXPERTS)
        found.update(dict.fromkeys(shown))
    return [
        (name, said if name in WHOLE else shorten(said, MOST_LETTERS, placeholder=" ..."))
        for name, said in found
    ]


def advice(found: Advice | None) -> list[Row]:
    """Say what would help, and what was tried."""
    if found is None or not found.num_tried:
        return []
    tried = f"{found.num_tried} change{'s' * (found.num_tried > 1)} simulated, times alone"
    if not found.lines:
        return [("would help", f"none of {tried}")]
    return [*(("would help", line) for line in found.lines), ("", f"({tried})")]


def wrapped(rows: Sequence[Row], cell: int = CELL) -> list[Row]:
    """Break what does not fit beside its name, at spaces."""
    return [
        (name, fill(said, cell, break_long_words=False, break_on_hyphens=False))
        for name, said in rows
    ]


def lines(rows: Sequence[Row], width: int) -> str:
    """Write rows as lines of text, below a table."""
    return "\n".join(
        fill(
            f"{name}: {said}" if name else said,
            width,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for name, said in rows
    )
