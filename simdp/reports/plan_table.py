"""Table of a plan for the terminal: the best options, the Pareto front, and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.errors import joined
from simdp.keys import short_key, written
from simdp.reports.figures import WIDTH, duration, energy, money, nbytes, number, percent
from simdp.reports.sections import table_of
from simdp.reports.wide_table import filled, wide_table
from simdp.results.plan import InfeasiblePoints, Option, PlanResult

MAX_FRONT = 12  # options of the front that are shown; its file has all

# why points were not simulated: singular and plural
REASONS = {
    "impossible": ("is infeasible", "are infeasible"),
    "memory": ("needs more memory", "need more memory"),
    "deadline": ("misses the deadline", "miss the deadline"),
    "budget": ("misses the budget", "miss the budget"),
    "energy": ("misses the energy", "miss the energy"),
    "price": ("has no known price", "have no known price"),
    "power": ("has no known power", "have no known power"),
    "worse": (
        "is no better than one that was simulated",
        "are no better than one that was simulated",
    ),
    "sampled": ("was not looked at", "were not looked at"),
}


def table(plan: PlanResult) -> RenderableType:
    """Write a plan with its options, or with the nearest one."""
    if plan.nearest is not None:
        head = f"nothing meets the limits; the nearest, {plan.nearest.why}"
        lines = [*_changes(plan, [plan.nearest]), *_foot(plan)]
        return Group(_options(head, plan, [plan.nearest]), Text("\n".join(lines)))
    best = plan.best[0]
    lines = [f"why: {best.why}", f"limited by: {_limit(best)}"]
    lines += [f"order: {plan.order}"] if plan.order else []
    lines += [f"chance: {line}" for line in chances(plan)]
    lines += same_training(plan)
    shown = spread(plan.front)
    head = "time, money and memory: no other is better in all three"
    if len(shown) < len(plan.front):
        head += f" ({len(shown)} of {len(plan.front)})"
    foot = [*_changes(plan, [*plan.best, *shown]), *_foot(plan)]
    return Group(
        _options(f"the {plan.goal}, and what comes next", plan, plan.best),
        filled(lines),
        Text(""),
        _options(head, plan, shown),
        Text("\n".join(foot)),
    )


def _options(title: str, plan: PlanResult, options: Sequence[Option]) -> RenderableType:
    """Write a row per option, and the common settings below."""
    keys = list(dict.fromkeys(key for option in options for key in option.set))
    common = [key for key in keys if len({written(o.set.get(key)) for o in options}) == 1]
    if len(options) == 1:
        common = []
    own = [key for key in keys if key not in common]
    heads = [("#", True), *((_head(key), False) for key in own)]
    heads += [(name, True) for name in ("step", "to end", "USD", "kWh", "memory")]
    has_chance = any(option.chance_to_meet is not None for option in options)
    heads += [("in time", True)] if has_chance else []
    rows = [
        [
            f"{plan.number(option)}{MARK if option.changes_training else ''}",
            *(written(option.set.get(key)) for key in own),
            duration(option.step_time_s),
            duration(option.finish_s),
            "-" if option.cost_usd is None else number(option.cost_usd, ".3g"),
            "-" if option.energy_kwh is None else number(option.energy_kwh, ".3g"),
            nbytes(option.peak_memory_bytes),
            *([likely(option.chance_to_meet)] if has_chance else []),
        ]
        for option in options
    ]
    made = wide_table(table_of(title, heads, rows))
    if not common:
        return made
    settings = ", ".join(f"{short_key(key)}: {written(options[0].set[key])}" for key in common)
    return Group(made, Text(fill(f"all: {settings}", WIDTH)))


MARK = "*"  # behind the number of an option that changes the training itself


def likely(chance: float | None) -> str:
    """Write a probability as ``"83 %"``; between 1 % and 99 % unless it is certain."""
    if chance is None:
        return "-"
    if chance in (0.0, 1.0):
        return f"{100 * chance:.0f} %"
    return f"{min(max(100 * chance, 1.0), 99.0):.0f} %"


def chances(plan: PlanResult) -> Iterator[str]:
    """Write the probability that the best option meets the limits."""
    best = plan.best[0]
    if best.chance_to_meet is None:
        return
    limits = " and ".join(name for name in plan.limits if name != "memory")
    line = f"number 1 meets the {limits} with {likely(best.chance_to_meet)}"
    if best.low_s is None or best.chance_by_luck is None:
        yield f"{line}, as runs differ"
    else:
        yield (
            f"{line}, by the 90 % interval of a step and as runs differ; if a step takes exactly "
            f"{duration(best.step_time_s)}, with {likely(best.chance_by_luck)}"
        )
    if plan.sure is not None:
        yield f"options listed meet them with {likely(plan.sure)} at least (--sure)"
    elif best.chance_to_meet < LIKELY:
        yield f"for options that meet them with 90 % at least, add --sure {100 * LIKELY:.0f}%"


LIKELY = 0.9  # probability below which a plan suggests ``--sure``


def changes_of(plan: PlanResult, options: Sequence[Option]) -> dict[str, list[int]]:
    """List changes of the training itself, with the numbers of their options."""
    groups: dict[str, list[int]] = {}
    for option in options:
        for change in option.changes_training:
            numbers = groups.setdefault(change, [])
            if plan.number(option) not in numbers:
                numbers.append(plan.number(option))
    return {change: sorted(numbers) for change, numbers in groups.items()}


def same_training(plan: PlanResult) -> Iterator[str]:
    """Name the best option with unchanged training, if the best one changes it."""
    if not plan.best or not plan.best[0].changes_training:
        return
    same = [option for option in (*plan.best, *plan.front) if not option.changes_training]
    if not same:
        yield "all options listed change the training"
        return
    first = same[0]
    sentence = f"the best that trains as the scenario does is number {plan.number(first)}"
    yield f"{sentence}: {first.label}"


def _changes(plan: PlanResult, options: Sequence[Option]) -> Iterator[str]:
    """List the changes of the training, a line each."""
    groups = changes_of(plan, options)
    if groups:
        yield fill(f"{MARK} changes the training, so that the loss may be another one:", WIDTH)
    for change, numbers in groups.items():
        yield fill(f"  {', '.join(map(str, numbers))}: {change}", WIDTH, subsequent_indent="    ")


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


def spread(options: Sequence[Option]) -> Sequence[Option]:
    """Choose options of the front evenly, with the first and the last."""
    if len(options) <= MAX_FRONT:
        return options
    last = len(options) - 1
    return [options[round(i * last / (MAX_FRONT - 1))] for i in range(MAX_FRONT)]


def _foot(plan: PlanResult) -> Iterator[str]:
    if plan.limits:
        limits = ", ".join(f"{name} {limit_written(name, v)}" for name, v in plan.limits.items())
        binds = f"; {plan.binding} binds" if plan.binding else "; none binds"
        yield fill(f"limits: {limits}{binds}", WIDTH)
    elif plan.binding:
        yield fill(f"{plan.binding} binds", WIDTH)
    yield fill("batch: samples per GPU and micro-step; x: micro-steps per step", WIDTH)
    pruned = why_not(plan.pruned)
    rest = f"; of the others {pruned}" if pruned else ""
    yield fill(f"{plan.num_points:,} points, {plan.num_simulated:,} simulated{rest}", WIDTH)
    reasons = why_infeasible(plan)
    for row in reasons[:MAX_REASONS]:
        yield fill(f"  {infeasible_written(row)}", WIDTH, subsequent_indent="    ")
    if len(reasons) > MAX_REASONS:
        more = sum(row.count for row in reasons[MAX_REASONS:])
        yield f"  {more:,}: other reasons, which are in plan.json"
    for note in plan.notes:
        yield fill(note, WIDTH)


MAX_REASONS = 6  # reasons of infeasible points that are shown; plan.json has all


def why_infeasible(plan: PlanResult) -> list[InfeasiblePoints]:
    """List the reasons of infeasible points, without those that miss a limit of the command."""
    return [row for row in plan.infeasible if not str(row.option).startswith(LIMIT_OPTIONS)]


LIMIT_OPTIONS = ("--deadline", "--budget", "--energy", "--max-memory")


def infeasible_written(row: InfeasiblePoints) -> str:
    """Write a row of `PlanResult.infeasible`, with the option to change."""
    option = [f"try {row.option}"] * bool(row.option)
    return joined([f"{row.count:,}: {row.reason}", *option])


def why_not(pruned: Mapping[str, int]) -> str:
    """Write how many points were not simulated for each reason."""
    return ", ".join(f"{count:,} {reason(why, count)}" for why, count in pruned.items() if count)


def reason(why: str, count: int) -> str:
    """Write why ``count`` points were not simulated; ``why`` is a key of `PlanResult.pruned`."""
    return REASONS[why][count != 1]


def limit_written(name: str, value: float) -> str:
    """Write a limit of a plan: ``"3 days"``, ``"60 GB"``."""
    writers = {"deadline": duration, "memory": nbytes, "budget": money, "energy": energy}
    return str(writers[name](value))
