"""Tables for the terminal: a summary of a study, every rank of a run, and the lists of kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.results.metrics import per_rank
from simdp.results.result import Result, Study

PARTS = {
    "compute_s": "compute",
    "update_s": "update",
    "exposed_comm_s": "exposed comm",
    "wait_s": "wait",
    "other_s": "other",
}
"""What a step's time is made of."""

SHORT = {"step_time_s": "step", **PARTS, "exposed_comm_s": "exposed"}
"""Heads of narrow columns."""

UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

MAX_RANKS = 64
"""Ranks that `ranks` lists."""


def seconds(value: float | None) -> str:
    """Write a time with three digits and the unit that suits it."""
    if value is None:
        return "-"
    unit, scale = _unit([value])
    return f"{value / scale:.4g} {unit}" if value else "0"


def nbytes(value: float) -> str:
    """Write a size with three digits and the unit that suits it."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def _number(value: float | None, digits: str = ".4g") -> str:
    return "-" if value is None else f"{value:{digits}}"


def _scaled(key: str, scale: float, digits: str, metrics: Mapping[str, Any]) -> str:
    return f"{metrics[key] / scale:{digits}}" if metrics[key] else "0"


def _short(value: float | None) -> str:
    """Write a large number in thousands or millions."""
    for letter, scale in (("M", 1e6), ("k", 1e3)):
        if value is not None and value >= scale:
            return f"{value / scale:.4g} {letter}"
    return _number(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _share(value: float, step_time: float) -> str:
    return _percent(value / step_time) if step_time else "-"


def summary(study: Study) -> RenderableType:
    """Summarise a study: one run in rows, a sweep as a row per point."""
    if study.scenario.get("sweep"):
        return _sweep(study)
    return _one(study.points[0])


def _one(result: Result) -> RenderableType:
    m, n = result.metrics, result.world_size
    step_time = m["step_time_s"]
    times = Table(title=f"{result.scenario['name']}: {n} rank{'s' if n > 1 else ''}")
    times.add_column("per step, mean over ranks")
    times.add_column("time", justify="right")
    times.add_column("share", justify="right")
    times.add_row("step time", seconds(step_time), "", style="bold")
    for key, name in PARTS.items():
        times.add_row(f"  {name}", seconds(m[key]), _share(m[key], step_time))
    hidden = f"{seconds(m['comm_s'])} in all"
    times.add_row("communication", hidden, "")
    throughput = m["throughput_samples_per_s"]
    rows = [
        ("throughput", "-" if throughput is None else f"{throughput:,.0f} samples/s"),
        ("buckets", _buckets(m["bucket_bytes"])),
        ("sent per rank and step", nbytes(max(m["bytes_sent_per_rank"]))),
        (
            "peak memory",
            nbytes(max(m["peak_memory_bytes"])) + ("" if m["fits_memory"] else ", does not fit"),
        ),
        ("simulated", seconds(m["simulated_s"])),
        ("clock", result.fabric),
    ]
    if m["loss"]:
        rows[1:1] = [
            ("loss, first to last step", f"{_number(m['loss'][0])} to {_number(m['loss'][-1])}"),
            ("replicas identical", "yes" if m["replicas_identical"] else "no"),
        ]
    if m["skipped_steps"] is not None:
        rows.insert(3 if m["loss"] else 1, ("skipped steps", _skipped(m)))
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        facts.add_row(f"{name}:", value)
    return Group(times, facts)


def _skipped(m: dict[str, Any]) -> str:
    """Which steps an inf or nan cost, and where the loss scale went."""
    steps = ", ".join(map(str, m["skipped_steps"][:6])) or "none"
    more = ", ..." if len(m["skipped_steps"]) > 6 else ""
    scale = m["loss_scale"]
    moved = f" (loss scale {scale[0]:,.6g} to {scale[-1]:,.6g})" if scale else ""
    return f"{steps}{more}{moved}"


def _buckets(sizes: list[int] | None) -> str:
    if not sizes:
        return "none"
    more = ", ..." if len(sizes) > 6 else ""
    return f"{len(sizes)} ({', '.join(map(nbytes, sizes[:6]))}{more})"


def _unit(values: Iterable[float]) -> tuple[str, float]:
    """Choose one unit for all times of a table, by the largest."""
    largest = max(values, default=0.0)
    return next((unit for unit in UNITS if largest >= unit[1]), UNITS[-1])


def _digits(largest: float) -> str:
    """As many decimals for all numbers as give the largest four digits."""
    return f".{max(3 - len(str(int(largest))) + 1, 0)}f"


def _sweep(study: Study) -> RenderableType:
    """A row per point; columns in which nothing happens are left out."""
    points, keys = study.points, list(study.scenario["sweep"])
    unit, scale = _unit(p.metrics["step_time_s"] for p in points)
    digits = _digits(max(p.metrics["step_time_s"] for p in points) / scale)
    title = f"{study.scenario['name']}: a step's time in {unit}, mean over ranks"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0)
    for key in keys:
        table.add_column(key.split(".")[-1], no_wrap=True)
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (name, partial(_scaled, key, scale, digits))
        for key, name in SHORT.items()
        if any(p.metrics[key] for p in points)
    ]
    columns.append(("samples/s", lambda m: _short(m["throughput_samples_per_s"])))
    if any(p.metrics["scaling_efficiency"] is not None for p in points):
        columns.append(("eff.", lambda m: _percent(m["scaling_efficiency"])))
    if any(p.metrics["loss"] for p in points):
        columns.append(("loss", lambda m: _number(m["loss"][-1] if m["loss"] else None)))
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for point in points:
        cells = [write(point.metrics) for _, write in columns]
        table.add_row(*(_setting(point.set[key]) for key in keys), *cells)
    return table


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(str(inner) for inner in value.values())
    return str(value).lower() if isinstance(value, bool) else str(value)


def ranks(study: Study) -> RenderableType:
    """Every rank of the last point: where its time went, what it sent and learned."""
    result = study.points[-1]
    if result.trace is None:
        return Text("no trace")
    m, n = result.metrics, result.world_size
    found = per_rank(result.trace, n, int(result.trace.step.max()) + 1)
    unit, scale = _unit([m["step_time_s"]])
    digits = _digits(m["step_time_s"] / scale)
    where = f" at {', '.join(map(_setting, result.set.values()))}" if result.set else ""
    table = Table(
        title=f"every rank{where}: a step's time in {unit}",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for name in ("rank", *SHORT.values(), "sent", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank in range(min(n, MAX_RANKS)):
        loss = m["loss_per_rank"][-1][rank] if m["loss_per_rank"] else None
        table.add_row(
            str(rank),
            *(f"{found[key][rank] / scale:{digits}}" for key in SHORT),
            nbytes(m["bytes_sent_per_rank"][rank]),
            _number(loss),
        )
    if n > MAX_RANKS:
        table.caption = f"ranks {MAX_RANKS} ... {n - 1} are left out"
    return table


def kinds(families: Mapping[str, Mapping[str, str]]) -> RenderableType:
    """List the kinds of families, one line each: family, kind, what it is."""
    rows = [
        (family, kind, line.replace("`", ""))
        for family, members in families.items()
        for kind, line in members.items()
    ]
    widths = [max(len(row[column]) for row in rows) + 2 for column in (0, 1)]
    return Text("\n".join(f"{a:{widths[0]}}{b:{widths[1]}}{c}" for a, b, c in rows))
