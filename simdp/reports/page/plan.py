"""Page of a plan: the chosen configuration, alternatives and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simdp.files import format_yaml
from simdp.keys import PLAIN_KEYS, short_key, written
from simdp.reports import figures, plan_table
from simdp.reports.captions import about_scenario
from simdp.reports.charts.chart import Axis, Chart, ReferenceLine, Series
from simdp.reports.charts.sweep import steps
from simdp.reports.figures import Row, TableCell, duration, money, nbytes, percent, seconds
from simdp.reports.page.run import closing
from simdp.reports.sections import Page, Section, Source, Summary, Table, Tile, Verdict
from simdp.results.plan import Option, PlanResult


def page(plan: PlanResult, command: Sequence[str] = ()) -> Page:
    """Make the page of a plan with its options, or with the one that misses its limits least."""
    sections = [
        _verdict(plan),
        _summary(plan),
        *[Verdict("Warnings", plan.notes, "warning") for _ in plan.notes[:1]],
        *_training(plan),
        *front(plan),
        _options(plan),
        *_shares(plan),
        *_scenarios(plan),
        *closing(plan.scenario, plan.version, "plan", command),
    ]
    name = str(plan.scenario.get("name", "scenario"))
    answer = plan.best[0].label or name if plan.best else "no point is within the limits"
    seed = plan.scenario.get("seed", 0)
    return Page(
        f"{answer}: the {plan.goal} way to train" if plan.best else f"{answer}, of {name}",
        about_scenario(plan.scenario, plan.choices),
        sections,
        f"scenario {name} · seed {seed} · simdp {plan.version}",
    )


def _verdict(plan: PlanResult) -> Section:
    if not plan.best:
        lines = [f"No point meets the limits{_binding(plan)}."]
        if plan.nearest is not None:
            over = ", ".join(
                f"{name} {value:.3g} times" for name, value in plan.nearest.misses.items()
            )
            lines.append(f"The nearest: {plan.nearest.label}: {over} what is allowed.")
        return Verdict("Verdict", lines, "warning")
    best = plan.best[0]
    lines = [
        f"{best.label}: done after {duration(best.finish_s)}, {_bill(best)}.",
        figures.sentence(best.why, "."),
        *(figures.sentence(line, ".") for line in plan_table.chances(plan)),
        f"What limits it: {best.limit}." if best.limit else "",
        f"Order: {plan.order}." if plan.order else "",
    ]
    if best.changes_training:
        lines.append(f"It changes the training: {'; '.join(best.changes_training)}.")
        lines += [figures.sentence(line, ".") for line in plan_table.same_training(plan)]
    if plan.binding:
        lines.append(f"A better one is ruled out{_binding(plan)}.")
    likely_enough = best.chance_to_meet is None or best.chance_to_meet >= plan_table.LIKELY
    is_sure = plan.is_order_sure and likely_enough and not best.changes_training
    return Verdict("Verdict", [line for line in lines if line], "good" if is_sure else "note")


def _training(plan: PlanResult) -> Iterator[Section]:
    """List the options that change the training itself."""
    groups = plan_table.changes_of(plan, plan.options)
    if groups:
        lines = [
            f"Option {', '.join(map(str, numbers))}: {change}."
            for change, numbers in groups.items()
        ]
        note = "With these the loss after as many samples may be another one."
        yield Verdict("What changes the training itself", lines, "warning", note=note)


def _binding(plan: PlanResult) -> str:
    if plan.binding is None:
        return ""
    allowed = plan.limits.get(plan.binding)
    limit = "" if allowed is None else f", {plan_table.limit_written(plan.binding, allowed)}"
    return f" by the {plan.binding}{limit}"


def _bill(option: Option) -> str:
    costs = [money(option.cost_usd)] if option.cost_usd is not None else []
    costs += [figures.energy(option.energy_kwh)] if option.energy_kwh is not None else []
    return ", ".join([*costs, f"{nbytes(option.peak_memory_bytes)} of the fullest device"])


def _summary(plan: PlanResult) -> Section:
    tiles = []
    if plan.best:
        best = plan.best[0]
        interval = best.finish_interval
        ends = "" if interval is None else f"90 %: {' to '.join(map(duration, interval))}"
        tiles = [
            Tile("done after", duration(best.finish_s), ends),
            Tile("a step", seconds(best.step_time_s), _interval(best)),
            Tile("memory", percent(best.memory_share), nbytes(best.peak_memory_bytes)),
        ]
        if best.cost_usd is not None:
            tiles.insert(1, Tile("costs", money(best.cost_usd)))
    rows = [
        Row("until", "until", plan.target or "a million samples are trained"),
        *(
            Row(name, name, f"{plan_table.limit_written(name, value)} at most")
            for name, value in plan.limits.items()
        ),
        Row(
            "points",
            "points",
            f"{plan.num_points:,}, of which {plan.num_simulated:,} were simulated",
        ),
        *(
            Row(why, f"  {plan_table.reason(why, count)}", f"{count:,}")
            for why, count in plan.pruned.items()
            if count
        ),
        *(
            Row("infeasible", "infeasible", plan_table.infeasible_written(row))
            for row in plan_table.why_infeasible(plan)
        ),
        Row("proof", "the answer is", _proof(plan)),
    ]
    if plan.best and plan.best[0].chance_to_meet is not None:
        tiles.append(
            Tile("chance to meet the limits", plan_table.likely(plan.best[0].chance_to_meet))
        )
    return Summary("Summary", tiles, rows)


def _proof(plan: PlanResult) -> str:
    """Write whether the search is exhaustive and its order certain."""
    if not plan.is_exact:
        return "of a sample: not all points were looked at"
    if plan.is_order_sure:
        return "exact: all other points are proved to be none of these"
    return (
        "by simulated times, of all points; their intervals overlap, so that another option may "
        "be the best"
    )


def _interval(option: Option) -> str:
    if option.low_s is None or option.high_s is None:
        return "no interval: the machine is not calibrated"
    return f"90 %: {seconds(option.low_s)} to {seconds(option.high_s)}"


def front(plan: PlanResult) -> Iterator[Section]:
    """Draw time against money and against memory, with the intervals of times."""
    options = plan.front or plan.best
    if len(options) < 2:
        return
    longest = max(option.finish_s for option in options)
    unit, size = next(
        ((name, size) for name, size, least in figures.DURATIONS if longest >= least * size),
        ("s", 1.0),
    )
    names = _names(plan, options)
    best = plan.best[0].set if plan.best else None
    others = [option for option in options if option.set != best]
    named = plan_table.spread(others)
    marks = (
        [ReferenceLine("deadline", plan.limits["deadline"] / size)]
        if "deadline" in plan.limits
        else []
    )
    ways = [("Money [USD]", "USD", "budget", [option.cost_usd for option in options])]
    memory: list[float | None] = [option.peak_memory_bytes / 1e9 for option in options]
    ways += [("Memory of the fullest device [GB]", "GB", "memory", memory)]
    for label, of, limit, values in ways:
        if any(value is None for value in values):
            continue
        series = [
            _series(name, those, size, of, names)
            for name, those in (
                ("the best", plan.best[:1]),
                ("the front", named),
                ("more of the front", [option for option in others if option not in named]),
            )
            if those
        ]
        allowed = plan.limits.get(limit)
        across = (
            []
            if allowed is None
            else [ReferenceLine(limit, allowed / (1 if of == "USD" else 1e9), "x")]
        )
        yield Chart(
            f"Time against {label.partition(' ')[0].lower()}",
            Axis(label, "value", of, from_zero=True),
            Axis(f"Time until it is done [{unit}]", unit=unit),
            series,
            marks + across,
            caption="No other point is better in time, money and memory at once than these; bars "
            "are the 90 % intervals of time.",
        )


def _names(plan: PlanResult, options: Sequence[Option]) -> dict[str, str]:
    """Name the points of a picture: number, and differing settings."""
    keys = list(dict.fromkeys(key for option in options for key in option.set))
    own = [key for key in keys if len({repr(option.set.get(key)) for option in options}) > 1]
    own = [key for key in own if key != "workload.grad_accum"] or own
    return {
        repr(option.set): f"{plan.number(option)}: "
        + ", ".join(_value(key, option.set[key]) for key in own if key in option.set)
        for option in (*options, *plan.best[:1])
    }


def _value(key: str, value: object) -> str:
    if key == "cluster.world_size":
        return f"{value} GPUs"
    if key in PLAIN_KEYS or key == "cluster.machine":
        return written(value)
    return f"{short_key(key)} {written(value)}"


def _series(
    name: str, options: Sequence[Option], size: float, of: str, names: Mapping[str, str]
) -> Series:
    at = [
        (option.cost_usd if of == "USD" else option.peak_memory_bytes / 1e9) or 0.0
        for option in options
    ]
    ends = [option.finish_interval or (None, None) for option in options]
    low = [None if end[0] is None else end[0] / size for end in ends]
    high = [None if end[1] is None else end[1] / size for end in ends]
    known = any(end is not None for end in low)
    times = [option.finish_s / size for option in options]
    return Series(
        name,
        at,
        times,
        "points",
        low if known else (),
        high if known else (),
        labels=[] if name.startswith("more") else [names[repr(option.set)] for option in options],
    )


def _options(plan: PlanResult) -> Section:
    """Make the table of all options."""
    heads = [
        "#",
        "option",
        "done after",
        "90 % interval",
        "chance to meet the limits",
        "GPU hours",
        "USD",
        "energy",
        "memory",
        "step",
        "limit",
        "changes in training",
        "why",
    ]
    rows = list[list[TableCell | str]]()
    for place, option in enumerate(plan.options, 1):
        interval = option.finish_interval
        ends = "-" if interval is None else " to ".join(map(duration, interval))
        rows.append(
            [
                TableCell(str(place), place),
                option.label,
                TableCell(duration(option.finish_s), option.finish_s),
                TableCell(ends, None if interval is None else interval[1]),
                TableCell(plan_table.likely(option.chance_to_meet), option.chance_to_meet),
                TableCell(f"{option.gpu_hours:.3g}", option.gpu_hours),
                TableCell(money(option.cost_usd).removesuffix(" USD"), option.cost_usd),
                TableCell(figures.energy(option.energy_kwh), option.energy_kwh),
                TableCell(nbytes(option.peak_memory_bytes), option.peak_memory_bytes),
                TableCell(seconds(option.step_time_s), option.step_time_s),
                option.limit or "-",
                "; ".join(option.changes_training) or "none",
                option.why or "-",
            ]
        )
    return Table("The options", heads, rows, note="The best comes first, then the front.")


def _shares(plan: PlanResult) -> Iterator[Section]:
    """Draw the parts of each option's step."""
    options = [option for option in plan.options if option.shares]
    if not options:
        return
    yield steps(
        "Where a step's time goes",
        [option.label for option in options],
        [{f"{key}_s": value for key, value in option.shares.items()} for option in options],
        caption="A bar for each option; its parts add up to the step.",
    )


def _scenarios(plan: PlanResult) -> Iterator[Section]:
    """List each option's settings and file."""
    parts = []
    for number, option in enumerate(plan.options, 1):
        lead = f"# option {number}: {option.file or option.label}\n"
        parts.append(lead + "".join(_line(key, value) for key, value in option.set.items()))
    note = "Each file beside this page is a whole scenario: python -m simdp run FILE."
    yield Source(
        "What the options set",
        note=note if any(option.file for option in plan.options) else "",
        folded=True,
        source="\n".join(parts),
        name="options.yaml",
    )


def _line(key: str, value: object) -> str:
    """Write a key and its value as YAML, without the brackets of a short mapping."""
    text = format_yaml({key: value})
    return text[1:-2] + "\n" if text.startswith("{") else text
