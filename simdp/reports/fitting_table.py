"""Table of what fits for the terminal: a row per method, best first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.reports.figures import WIDTH, nbytes, number, unit_of
from simdp.reports.wide_table import wide_table
from simdp.results.fitting import Fitting, FittingRow

Column = tuple[str, bool, Callable[[FittingRow], str]]

ADDED = {"full": "", "offload": "+cpu", "lora": "+lora", "qlora": "+qlora"}
"""How methods are written behind the strategy."""

LEGEND = {
    "offload": "+cpu: DeepSpeed's offload to the host's memory, whose size is not checked",
    "lora": "+lora: adapters are trained, all else is frozen",
    "qlora": "+qlora: adapters of a model in 4 bits",
}


def table(found: Fitting) -> RenderableType:
    """Write what fits and what does not.

    Parameters
    ----------
    found : Fitting
        With at least one row.
    """
    unit, scale = unit_of(row.step_time_s or 0.0 for row in found.rows)
    columns = list(_columns(found, scale))
    heads = [(head, is_number) for head, is_number, _ in columns]
    rows = [[write(row) for *_, write in columns] for row in found.rows]
    on = f"{found.gpus} GPUs of {nbytes(found.memory_bytes)}"
    if found.is_least:
        on = f"the fewest GPUs of {nbytes(found.memory_bytes)}"
    title = f"{found.model} on {on}, {found.precision}; memory in GB, steps in {unit}"
    return Group(wide_table(title, heads, rows), Text("\n".join(_foot(found))))


def _columns(found: Fitting, scale: float) -> Iterator[Column]:
    """The columns that say something."""
    if found.is_least:
        yield "GPUs", True, lambda row: f"{'>' if row.state == 'no' else ''}{row.gpus}"
    yield "strategy", False, lambda row: row.strategy + ADDED[row.method]
    yield "recompute", False, lambda row: row.recompute
    yield "batch", True, lambda row: str(row.microbatch)
    yield "fits", False, lambda row: row.state
    yield "peak", True, lambda row: _gigabytes(row.peak_memory_bytes)
    yield "step", True, lambda row: number(row.step_time_s and row.step_time_s / scale)
    if any(row.tokens_per_s for row in found.rows):
        yield "tokens/s", True, lambda row: number(row.tokens_per_s, ",.0f")
    else:
        yield "samples/s", True, lambda row: number(row.samples_per_s, ",.0f")
    if any(row.mfu for row in found.rows) and not found.is_least:
        yield "MFU", True, lambda row: "-" if row.mfu is None else f"{row.mfu:.0%}"
    if any(_price(row) for row in found.rows):
        yield "USD/M", True, lambda row: number(_price(row), ".3g")


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:,.{1 if value < 99.95e9 else 0}f}"


def _price(row: FittingRow) -> float | None:
    """Of a million tokens, or samples where there are none."""
    return row.usd_per_million_tokens or row.usd_per_million_samples


def _foot(found: Fitting) -> Iterator[str]:
    if found.assumed is not None:
        yield fill(f"assumed: {found.assumed}; --machine takes others", WIDTH)
    yield fill(f"a sample: {found.samples_are}", WIDTH)
    yield fill(f"precision: {_of_precision(found.precision)}", WIDTH)
    kinds = dict.fromkeys(row.method for row in found.rows)
    for line in [LEGEND[kind] for kind in LEGEND if kind in kinds]:
        yield fill(line, WIDTH)
    yield fill(_explained(found), WIDTH)
    yield from (fill(line, WIDTH) for line in _answer(found))


def _of_precision(precision: str) -> str:
    """What is kept in which type."""
    kind, _, low = precision.partition(" ")
    meaning = {
        "mixed": f"weights, gradients and layers in {low}, 32-bit master weights and optimizer",
        "amp": f"torch.autocast: layers in {low}, weights, gradients and optimizer in 32 bits",
        "full": "all in 32 bits",
    }
    return f"{precision}: {meaning[kind]}; --precision takes another"


def _explained(found: Fitting) -> str:
    """What the columns are."""
    rows = [row for row in found.rows if row.state != "no"] or found.rows
    least = min(row.memory_low_bytes - row.peak_memory_bytes for row in rows) / 1e9
    most = max(row.memory_high_bytes - row.peak_memory_bytes for row in rows) / 1e9
    what = "tokens" if any(row.tokens_per_s for row in found.rows) else "samples"
    money = ""
    if any(_price(row) for row in found.rows):
        dated = f" of {found.price_date}" if found.price_date else ""
        money = f"; USD/M: per million {what}, at list prices{dated}"
    mfu = "; MFU: the model's own FLOPs over the GPUs' peak" if not found.is_least else ""
    return (
        "a steady step of one micro-batch per GPU; batch: its samples, as many as fit; peak: "
        "tensors of the fullest GPU; fits: with what CUDA, NCCL and fragments take beside them, "
        f"{least:.1f} to {most:.1f} GB; tight: that decides{mfu}{money}"
    )


def _answer(found: Fitting) -> Iterator[str]:
    """What follows: the row that `init` writes, or that nothing fits."""
    states = {row.state for row in found.rows}
    if states == {"no"}:
        more = "larger GPUs"
        if not found.is_least:
            more = "more GPUs (--gpus '?' finds how many), larger ones"
        yield f"nothing fits: take {more}, or shorter samples"
    elif "yes" not in states:
        yield "nothing fits for sure: what is tight may run out of memory"
    if found.is_least and found.rows[0].fits:
        yield f"the fewest that train all weights: {_named(found, 'full', 'offload')}"
    if (row := found.chosen) is not None:
        yield (
            f"init writes {row.strategy}{ADDED[row.method]}, {row.recompute}, batch "
            f"{row.microbatch}: the simplest of those within 5 % of the fastest{_inside(row)}"
        )


def _named(found: Fitting, *methods: str) -> str:
    """The least number of GPUs of each method, and the strategy."""
    named = []
    for method in methods:
        rows = [row for row in found.rows if row.method == method and row.fits]
        if rows:
            least = min(rows, key=lambda row: row.gpus)
            named.append(f"{least.gpus} with {least.strategy}{ADDED[method]}")
    return ", ".join(named) or "none"


def _inside(row: FittingRow) -> str:
    """The interval of a step."""
    if row.low_s is None or row.high_s is None:
        return ""
    unit, scale = unit_of([row.high_s])
    low, high = row.low_s / scale, row.high_s / scale
    return f"; 90 % interval of its step: {low:.3g} to {high:.3g} {unit}, others' alike"
