"""Tables for the terminal: a summary of a study, every rank of a run, and the lists of kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from textwrap import fill
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.reports.wide_table import widen
from simdp.results.comparison import written
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

IDENTICAL = {True: "yes", False: "no", None: "there is one model"}

REST = {"other": "the rest"}
"""Parts of a rank's memory whose name says too little outside a list of all."""

MAX_RANKS = 64
"""Ranks that `ranks` lists."""

WIDTH, MAX_LIST = 80, 53
"""Columns of a terminal; letters of a list beside its name, of which the rest is cut."""

LEAST_SHARE = 1e-3
"""Part of a step below which a column of a sweep is left out."""

LEAST_DIFFERENCE = 0.01
"""Part by which peaks of memory differ in a sweep that shows them."""

SPARE = ("samples/s", "update", "wait", "eff.")
"""Columns that a wide sweep can do without, in the order in which they go."""


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
    hidden = m["comm_s"] - m["exposed_comm_s"]
    said = f"{_share(hidden, m['comm_s'])} hidden" if m["comm_s"] else ""
    times.add_row("communication in all", seconds(m["comm_s"]), said)
    throughput = m["throughput_samples_per_s"]
    rows = [
        ("throughput", "-" if throughput is None else f"{throughput:,.0f} samples/s"),
        ("buckets", _buckets(m["bucket_bytes"])),
        ("sent per rank and step", nbytes(max(m["bytes_sent_per_rank"]))),
        *_memory_rows(m),
        ("simulated", seconds(m["simulated_s"])),
        *_network_rows(result.network),
        *_server_rows(result.server),
    ]
    if m["loss"]:
        rows[1:1] = [
            ("loss, first to last step", f"{_number(m['loss'][0])} to {_number(m['loss'][-1])}"),
            ("replicas identical", IDENTICAL[m["replicas_identical"]]),
        ]
    if m["skipped_steps"] is not None:
        place = 3 if m["loss"] else 1
        rows[place:place] = [("skipped steps", _listed(map(str, m["skipped_steps"])) or "none")]
        if m["loss_scale"]:
            rows.insert(place + 1, ("loss scale", _listed(_changes(m["loss_scale"]), "; ")))
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        facts.add_row(f"{name}:", value)
    return Group(times, facts)


def _memory_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The peak of the fullest rank, what it is made of, and all peaks where they differ."""
    peaks, parts = metrics["peak_memory_bytes"], metrics["memory_bytes"]
    said = nbytes(max(peaks)) + ("" if metrics["fits_memory"] else ", does not fit")
    made = sorted(((size, name) for name, size in parts.items() if size), key=lambda p: -p[0])
    each = [f"{REST.get(name, name).replace('_', ' ')} {nbytes(size)}" for size, name in made]
    rows = [("peak memory", said)] + [("  made of", fill(", ".join(each), MAX_LIST))] * bool(each)
    written = [nbytes(peak) for peak in peaks]
    if len(set(written)) > 1:
        rows.append(("  by rank", _listed(_by_rank(written))))
    return rows


def _by_rank(written: Sequence[str]) -> list[str]:
    """Join ranks next to each other that say the same: ``"5.1 GB on 0", "2 GB on 1-7"``."""
    found = []
    for text, group in groupby(range(len(written)), key=written.__getitem__):
        ranks = list(group)
        found.append(f"{text} on {ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else ""))
    return found


def _network_rows(network: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What crossed the links, and what `auto` chose; nothing of an older result."""
    rows: list[tuple[str, str]] = []
    if not network:
        return rows
    if network.get("bottleneck"):
        busiest = network["bottleneck"]
        link = str(busiest["link"]).removeprefix("the link from ")
        rows.append(("busiest link", f"{link}, {_percent(busiest['utilization'])} of the time"))
    for collective, choices in network.get("chosen", {}).items():
        each = [f"{choice['algorithm']} for {nbytes(choice['nbytes'])}" for choice in choices]
        rows.append((f"{collective}: auto", _listed(each)))
    why = str(network["why"]).replace("the link from ", "")
    rows.append(("clock", f"{network['fabric']} fabric: {why}"))
    return rows


def _server_rows(server: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What a parameter server did with the gradients."""
    if server is None:
        return []
    applied, stale = server["applied"], server["staleness"]
    gradients = f"{applied} applied in {server['updates']} updates, {server['dropped']} dropped"
    return [
        ("server", f"on rank {server['rank']}, busy {_percent(server['utilization'])} of the time"),
        ("gradients", gradients),
        ("staleness", f"{_number(stale['mean'])} updates on average, {stale['max']} at most"),
    ]


def _listed(parts: Iterable[str], comma: str = ", ", room: int = MAX_LIST) -> str:
    """Join as many parts as there is room for."""
    written = list(parts)
    shown = len(written)
    while shown and len(text := _joined(written, shown, comma)) > room:
        shown -= 1
    return text if shown else ""


def _joined(parts: list[str], shown: int, comma: str) -> str:
    return comma.join([*parts[:shown], *["..."] * (shown < len(parts))])


def _changes(values: Sequence[float]) -> list[str]:
    """Write a series by its first value, and its changes with their steps."""
    said = [f"{values[0]:,.6g}"]
    for step, (before, now) in enumerate(pairwise(values), 2):
        if now != before:
            said.append(f"{now:,.6g} from {'step ' * (len(said) == 1)}{step}")
    return said


def _buckets(sizes: list[int] | None) -> str:
    """Count the buckets and list their sizes, equal ones in one."""
    if not sizes:
        return "none"
    groups = [(size, len(list(group))) for size, group in groupby(map(nbytes, sizes))]
    count = f"{len(sizes)} "
    listed = [f"{many} x {size}" if many > 1 else size for size, many in groups]
    return f"{count}({_listed(listed, room=MAX_LIST - len(count) - 2)})"


def _unit(values: Iterable[float]) -> tuple[str, float]:
    """Choose one unit for all times of a table, by the largest."""
    largest = max(values, default=0.0)
    return next((unit for unit in UNITS if largest >= unit[1]), UNITS[-1])


def _digits(largest: float) -> str:
    """As many decimals for all numbers as give the largest four digits."""
    return f".{max(3 - len(str(int(largest))) + 1, 0)}f"


def _sweep(study: Study) -> RenderableType:
    """A row per point; columns in which next to nothing happens are left out."""
    points, keys = study.points, list(study.scenario["sweep"])
    unit, scale = _unit(p.metrics["step_time_s"] for p in points)
    digits = _digits(max(p.metrics["step_time_s"] for p in points) / scale)
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        name: partial(_scaled, key, scale, digits)
        for key, name in SHORT.items()
        if any(p.metrics[key] > LEAST_SHARE * p.metrics["step_time_s"] for p in points)
    }
    columns["samples/s"] = lambda m: _short(m["throughput_samples_per_s"])
    peaks = [max(p.metrics["peak_memory_bytes"]) for p in points]
    if max(peaks) > (1 + LEAST_DIFFERENCE) * min(peaks):
        columns["memory"] = lambda m: nbytes(max(m["peak_memory_bytes"]))
    if any(p.metrics["scaling_efficiency"] is not None for p in points):
        columns["eff."] = lambda m: _percent(m["scaling_efficiency"])
    if any(p.metrics["loss"] for p in points):
        columns["last loss"] = lambda m: _number(m["loss"][-1] if m["loss"] else None)
    if any(p.metrics["skipped_steps"] for p in points):
        columns["skipped"] = lambda m: str(len(m["skipped_steps"] or []))
    short = [key.rpartition(".")[2] for key in keys]
    heads = short if len({*short, *columns}) == len(short) + len(columns) else keys
    cells = {
        head: [written(p.set[key]) for p in points] for head, key in zip(heads, keys, strict=True)
    }
    cells |= {name: [write(p.metrics) for p in points] for name, write in columns.items()}
    for name in SPARE:
        if sum(1 + max(map(len, [head, *cells[head]])) for head in cells) >= WIDTH:
            cells.pop(name, None)
    title = f"{study.scenario['name']}: a step's time in {unit}, mean over ranks"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0)
    for head in cells:
        table.add_column(head, justify="right" if head in columns else "left", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    widen(table)
    return table


def ranks(study: Study) -> RenderableType:
    """Every rank of the last point: where its time went, what it sent and learned."""
    result = study.points[-1]
    if result.trace is None:
        return Text("no trace")
    m, n = result.metrics, result.world_size
    found = per_rank(result.trace, n, int(result.trace.step.max()) + 1)
    unit, scale = _unit([m["step_time_s"]])
    digits = _digits(m["step_time_s"] / scale)
    where = f" at {', '.join(map(written, result.set.values()))}" if result.set else ""
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
