"""Table of a plan for the terminal: the best and the next ones, the front, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.reports.figures import WIDTH, nbytes, number, percent
from simdp.reports.money_rows import duration, energy, money
from simdp.reports.wide_table import wide_table
from simdp.results.comparison import short_key, written
from simdp.results.plan import Option, Plan

MAX_FRONT = 12
"""Options of the front that are shown; its file has all."""

REASONS = {
    "impossible": ("cannot be", "cannot be"),
    "memory": ("needs more memory", "need more memory"),
    "deadline": ("misses the deadline", "miss the deadline"),
    "budget": ("misses the budget", "miss the budget"),
    "energy": ("misses the energy", "miss the energy"),
    "worse": (
        "is no better than one that was simulated",
        "are no better than one that was simulated",
    ),
    "sampled": ("was not looked at", "were not looked at"),
}
"""Why points were not simulated: of one, and of more."""


def table(found: Plan) -> RenderableType:
    """Write what a plan found.

    Parameters
    ----------
    found : Plan
        With options, or with the nearest.
    """
    if found.nearest is not None:
        head = f"nothing meets the limits; the nearest, {found.nearest.why}"
        return Group(_options(head, [found.nearest]), Text("\n".join(_foot(found))))
    parts: list[RenderableType] = [_options(f"the {found.goal}, and what comes next", found.best)]
    parts.append(Text(fill(f"why: {found.best[0].why}", WIDTH)))
    parts.append(Text(fill(f"limited by: {_limit(found.best[0])}", WIDTH)))
    if found.order:
        parts.append(Text(fill(f"order: {found.order}", WIDTH)))
    shown = _spread(found.front)
    head = "time, money and memory: no other is better in all three"
    if len(shown) < len(found.front):
        head += f" ({len(shown)} of {len(found.front)})"
    parts += [Text(""), _options(head, shown), Text("\n".join(_foot(found)))]
    return Group(*parts)


def _options(title: str, options: Sequence[Option]) -> RenderableType:
    """A row per option; what all of them set alike is said below."""
    keys = list(dict.fromkeys(key for option in options for key in option.set))
    alike = [key for key in keys if len({written(o.set.get(key)) for o in options}) == 1]
    if len(options) == 1:
        alike = []
    own = [key for key in keys if key not in alike]
    heads = [(_head(key), False) for key in own]
    heads += [(name, True) for name in ("step", "to end", "USD", "kWh", "memory")]
    rows = [
        [
            *(written(option.set.get(key)) for key in own),
            duration(option.step_time_s),
            duration(option.finish_s),
            "-" if option.cost_usd is None else number(option.cost_usd, ".3g"),
            "-" if option.energy_kwh is None else number(option.energy_kwh, ".3g"),
            nbytes(option.peak_memory_bytes),
        ]
        for option in options
    ]
    made = wide_table(title, heads, rows)
    if not alike:
        return made
    said = ", ".join(f"{short_key(key)}: {written(options[0].set[key])}" for key in alike)
    return Group(made, Text(fill(f"all: {said}", WIDTH)))


def _head(key: str) -> str:
    short = {"world_size": "GPUs", "microbatch": "batch", "grad_accum": "x"}
    name = short_key(key)
    return short.get(name, name)


def _limit(option: Option) -> str:
    whole = option.step_time_s or 1.0
    parts = ", ".join(
        f"{name.replace('_', ' ').replace('comm', 'communication')} {percent(value / whole)}"
        for name, value in option.shares.items()
        if value > 0.005 * whole
    )
    return f"{option.limit}; of a step {parts}"


def _spread(options: Sequence[Option]) -> Sequence[Option]:
    """Some of the front, evenly from its first to its last."""
    if len(options) <= MAX_FRONT:
        return options
    last = len(options) - 1
    return [options[round(i * last / (MAX_FRONT - 1))] for i in range(MAX_FRONT)]


def _foot(found: Plan) -> Iterator[str]:
    if found.limits:
        said = ", ".join(f"{name} {limit_written(name, v)}" for name, v in found.limits.items())
        binds = f"; {found.binding} binds" if found.binding else "; none binds"
        yield fill(f"limits: {said}{binds}", WIDTH)
    elif found.binding:
        yield fill(f"{found.binding} binds", WIDTH)
    yield fill("batch: samples per GPU and micro-step; x: micro-steps per step", WIDTH)
    pruned = ", ".join(f"{n:,} {reason(why, n)}" for why, n in found.pruned.items() if n)
    rest = f"; of the others {pruned}" if pruned else ""
    yield fill(f"{found.num_points:,} points, {found.num_simulated:,} simulated{rest}", WIDTH)
    for note in found.notes:
        yield fill(note, WIDTH)


def reason(why: str, count: int) -> str:
    """Say why so many points were not simulated; ``why`` is a key of `Plan.pruned`."""
    return REASONS[why][count != 1]


def limit_written(name: str, value: float) -> str:
    """A limit of a plan, by its name, as ``"3 days"`` or ``"60 GB"``."""
    writers = {"deadline": duration, "memory": nbytes, "budget": money, "energy": energy}
    return str(writers[name](value))
