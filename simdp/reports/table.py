"""The summary of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.arrays import Floats, grouped
from simdp.keys import written
from simdp.reports import answers, figures
from simdp.reports.figures import WIDTH, Row, nbytes, percent, seconds, span
from simdp.reports.wide_table import filled
from simdp.results.memory import MEMORY_PARTS as MEMORY_PARTS
from simdp.results.memory import usage
from simdp.results.metrics import LABELS, PART_TITLES, STEP_HEADS, Metrics, per_rank
from simdp.results.result import Advice, Result, Study
from simdp.results.trace import ACTIVITIES, Trace

RunRows = Callable[[Result, bool], Iterable[Row]]  # makes rows of a run; whether it is verbose

IDENTICAL = {True: "yes", False: "no", None: "there is one model"}
LEAST_PART = 0.01  # least share of a peak that is listed
# rows of `ranks`; number of ranks above which equal neighbours share a row
MAX_RANKS, FOLDED_FROM = 64, 8
MAX_LIST = 53  # letters of a list beside its name


def summary(study: Study, advice: Advice | None = None, verbose: bool = False) -> RenderableType:
    """Summarise a study: one run in rows, a sweep as a row per point.

    ``advice`` lists changes that make the run faster. Money and energy are shown if the scenario
    has a price, a power or a target, or with ``verbose``; this also adds the engine, the simulated
    time of all steps, and constants that the calibration leaves undetermined.
    """
    if study.scenario.get("sweep"):
        from simdp.reports.sweep_table import sweep_table  # which takes its words from here

        return sweep_table(study, verbose)
    return _one(study.points[0], advice, verbose)


def _one(result: Result, advice: Advice | None, verbose: bool) -> RenderableType:
    n = result.world_size
    times = Table(title=f"{result.scenario['name']}: {n} rank{'s' if n > 1 else ''}")
    times.add_column("per step, mean over ranks")
    times.add_column("time", justify="right")
    times.add_column("share", justify="right")
    whole, *parts = step_rows(result.metrics)
    times.add_row(*whole, style="bold")
    for row in parts:
        times.add_row(*row)
    facts = Table(show_header=False, box=None, pad_edge=False)
    unfit = answers.does_not_fit(result)
    verdict = answers.verdict(answers.of_run(result).lines[len(unfit) :])
    for name, value in answers.wrapped([*verdict, *fact_rows(result, advice, verbose)]):
        facts.add_row(f"{name}:" if name else "", value)
    return Group(*[filled(unfit)] * bool(unfit), times, facts)


def step_rows(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Split a step's time into rows of name, time and share; the whole step first."""
    m, step_time = metrics, metrics.step_time_s
    rows = [("step time", seconds(step_time), "")]
    for key, name in PART_TITLES.items():
        rows.append((f"  {name}", seconds(m[key]), figures.share(m[key], step_time)))
    hidden = m.comm_s - m.exposed_comm_s
    hidden_share = f"{figures.share(hidden, m.comm_s)} hidden" if m.comm_s else ""
    return [*rows, ("communication in all", seconds(m.comm_s), hidden_share)]


def _memory_rows(result: Result) -> list[Row]:
    """Write the highest peak, its parts, and all peaks if they differ."""
    metrics = result.metrics
    peaks, parts = metrics.peak_memory_bytes, metrics.memory_bytes
    peak_text = nbytes(max(peaks)) + ("" if metrics.fits_memory else ", does not fit")
    parts = _with_names(parts, _at_peak(result), LEAST_PART * max(peaks))
    made = sorted(((size, name) for name, size in parts.items() if size), key=lambda p: -p[0])
    part_texts = [f"{name.replace('_', ' ')} {nbytes(size)}" for size, name in made]
    rows = [Row("peak_memory", "peak memory", peak_text)]
    reserved = metrics.reserved_memory_bytes
    if reserved is not None:
        rows.append(Row("reserved_memory", "reserved memory", nbytes(reserved)))
    rows += [Row("memory_parts", "  made of", ", ".join(part_texts))] * bool(part_texts)
    written = [nbytes(peak) for peak in peaks]
    if len(set(written)) > 1:
        rows.append(Row("memory_by_rank", "  by rank", _joined(_by_rank(written))))
    return rows


def _at_peak(result: Result) -> dict[str, int]:
    """Read all parts of the fullest rank at its peak [bytes]; empty without a memory trace."""
    peaks = result.metrics.peak_memory_bytes
    if result.trace is None or not result.trace.memory:
        return {}
    memory = usage(result.trace.memory, [peaks.index(max(peaks))])
    if not len(memory.at) or abs(memory.total.max() - max(peaks)) > len(MEMORY_PARTS):
        return {}
    return dict(zip(MEMORY_PARTS, map(int, memory.kept[memory.peak()]), strict=True))


def _with_names(parts: Mapping[str, int], known: Mapping[str, int], least: float) -> dict[str, int]:
    """Split ``other`` into known parts above ``least``, and the rest."""
    named = {name: size for name, size in parts.items() if name != "other"}
    rest = parts.get("other", 0)
    split = {name: n for name, n in known.items() if name not in named and n >= least}
    split = split if sum(split.values()) <= rest else {}
    return {**named, **split, "the rest": rest - sum(split.values())}


def _by_rank(written: Sequence[str]) -> list[str]:
    """Join neighbouring ranks of equal text: ``"5.1 GB on 0", "2 GB on 1-7"``."""
    runs = groupby(range(len(written)), key=written.__getitem__)
    return [f"{text} on {span(list(ranks))}" for text, ranks in runs]


def _network_rows(network: Mapping[str, Any], verbose: bool) -> list[Row]:
    """Write the busiest link, the choices of `auto`, and with ``verbose`` the engine."""
    rows: list[Row] = []
    if not network:
        return rows
    if network.get("bottleneck"):
        busiest = network["bottleneck"]
        link = str(busiest["link"]).removeprefix("the link from ")
        use = f"{link}: {percent(busiest['utilization'])} of the time"
        rows.append(Row("busiest_link", "busiest link", use))
    for collective, choices in network.get("chosen", {}).items():
        choice_texts = [
            f"{choice['algorithm']} for {nbytes(choice['nbytes'])}" for choice in choices
        ]
        rows.append(Row("chosen", f"{collective}: auto", _joined(choice_texts)))
    if verbose:
        why = str(network["why"]).replace("the link from ", "")
        rows.append(Row("clock", "clock", f"{network['fabric']} fabric: {why}"))
    return rows


def _server_rows(server: Mapping[str, Any] | None) -> list[Row]:
    """Write the load of a parameter server, and the staleness of gradients."""
    if server is None:
        return []
    applied, stale = server["applied"], server["staleness"]
    gradients = f"{applied} applied in {server['updates']} updates, {server['dropped']} dropped"
    where = f"on rank {server['rank']}, busy {percent(server['utilization'])} of the time"
    age = f"{figures.number(stale['mean'])} updates on average, {stale['max']} at most"
    return [
        Row("server", "server", where),
        Row("gradients", "gradients", gradients),
        Row("staleness", "staleness", age),
    ]


def _dropped_rows(participation: Mapping[str, Any] | None) -> list[Row]:
    """Count the samples that did not contribute to training."""
    if participation is None:
        return []
    dropped, counted = participation["dropped"], participation["counted"]
    rows, total = list[Row](), sum(dropped)
    if total:
        most = dropped.index(max(dropped))
        part = "most of them" if 2 * dropped[most] > total else "the largest part"
        text = f"{total} of {total + counted}, {part} rank {most}'s: {dropped[most]}"
        rows.append(Row("dropped", "samples dropped", text))
    names = {"repeated": "samples done again", "uncommitted": "not committed"}
    return rows + [
        Row(key, name, str(participation[key]))
        for key, name in names.items()
        if participation.get(key)
    ]


# The rows of a run -------------------------------------------------------------------------------


def _metric_row(name: str, only_verbose: bool = False) -> RunRows:
    """Make a row of a metric, with the unit and the title of its declaration."""
    label = LABELS[name]

    def rows(result: Result, verbose: bool) -> list[Row]:
        value = result.metrics[name]
        if value is None or (only_verbose and not verbose):
            return []
        value = max(value) if label.reduced == "largest" else value
        return [Row(name, label.title, value, label.unit)]

    return rows


def _loss_rows(result: Result, verbose: bool) -> list[Row]:
    m = result.metrics
    if not m.loss:
        return []
    ends = figures.number(m.loss[0]), figures.number(m.last_loss)
    return [
        Row("loss", "loss, first to last step", " to ".join(ends)),
        Row("replicas", "replicas identical", IDENTICAL[m.replicas_identical]),
    ]


def _skipped_rows(result: Result, verbose: bool) -> list[Row]:
    m = result.metrics
    if m.skipped_steps is None:
        return []
    rows = [Row("skipped", "skipped steps", _joined(map(str, m.skipped_steps)) or "none")]
    if m.loss_scale:
        rows.append(Row("loss_scale", "loss scale", _joined(_changes(m.loss_scale), "; ")))
    return rows


def _money_rows(result: Result, verbose: bool) -> list[Row]:
    if not (verbose or answers.is_asked_for(result.scenario)):
        return []
    return answers.rows((result.cost, result.target))


ROWS: tuple[RunRows, ...] = (
    lambda result, _: [Row("throughput", "throughput", ", ".join(answers.rates(result.metrics)))],
    lambda result, _: answers.mfu(result.metrics),
    lambda result, _: answers.mfu_parts(result),
    lambda result, _: answers.interval(result.metrics),
    lambda result, _: answers.without_stragglers(result.metrics),
    lambda result, _: answers.lost(result),
    lambda result, _: answers.all_hidden(result.metrics),
    _loss_rows,
    _skipped_rows,
    lambda result, _: [Row("buckets", "buckets", _buckets(result.metrics.bucket_bytes))],
    _metric_row("bytes_sent_per_rank"),
    lambda result, _: _memory_rows(result),
    _metric_row("simulated_s", only_verbose=True),
    lambda result, verbose: _network_rows(result.network, verbose),
    lambda result, _: _server_rows(result.server),
    lambda result, _: _dropped_rows(result.participation),
    lambda result, _: answers.gradient_noise(result.gradient_noise),
    _money_rows,
    lambda result, _: answers.cards(result),
    lambda result, verbose: answers.known([result], verbose),
)
"""Rows of a run in their order; each line makes those of one topic, none where it does not apply.

A metric of `simdp.results.metrics.Metrics` is shown by one more ``_metric_row("its_name")``.
"""


def fact_rows(result: Result, advice: Advice | None = None, verbose: bool = False) -> list[Row]:
    """List the facts about a run; see `summary`."""
    rows = [row for make in ROWS for row in make(result, verbose)]
    return [*rows, *answers.advice(advice)]


# Cells -------------------------------------------------------------------------------------------


def _joined(parts: Iterable[str], comma: str = ", ", room: int = MAX_LIST) -> str:
    """Join as many parts as fit."""
    every = list(parts)
    for shown in range(len(every), 0, -1):
        text = comma.join([*every[:shown], *["..."] * (shown < len(every))])
        if len(text) <= room:
            return text
    return ""


def _changes(values: Sequence[float | None]) -> list[str]:
    """Write a series as its first value and its changes with their steps."""
    changes = [f"{values[0]:,.6g}"]
    for step, (before, now) in enumerate(pairwise(values), 2):
        if now != before:
            changes.append(f"{now:,.6g} from {'step ' * (len(changes) == 1)}{step}")
    return changes


def _buckets(sizes: Sequence[float] | None) -> str:
    """Count the buckets and list their sizes, equal ones once."""
    if not sizes:
        return "none"
    groups = [(size, len(list(group))) for size, group in groupby(map(nbytes, sizes))]
    count = f"{len(sizes)} "
    listed = [f"{many} x {size}" if many > 1 else size for size, many in groups]
    return f"{count}({_joined(listed, room=MAX_LIST - len(count) - 2)})"


def ranks(study: Study) -> RenderableType:
    """Write a row per rank of the last point: times, bytes sent, loss."""
    result = study.points[-1]
    if result.trace is None:
        return Text("no trace")
    m, n = result.metrics, result.world_size
    parts = per_rank(result.trace, n, int(result.trace.step.max()) + 1)
    unit, scale = figures.unit_of([m.step_time_s])
    digits = figures.digits_of(m.step_time_s / scale)
    where = f" at {', '.join(map(written, result.set.values()))}" if result.set else ""
    table = Table(
        title=f"every rank{where}: a step's time in {unit}", box=box.SIMPLE_HEAD, padding=0
    )
    for name in ("rank", *STEP_HEADS.values(), "sent", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    losses = (m.loss_per_rank or [None])[-1] or [None] * n
    cells = [
        (
            *(f"{getattr(parts, key)[rank] / scale:{digits}}" for key in STEP_HEADS),
            nbytes(m.bytes_sent_per_rank[rank]),
            figures.number(losses[rank]),
        )
        for rank in range(n)
    ]
    equal_ranks = [list(group) for _, group in groupby(range(n), cells.__getitem__)]
    rows = equal_ranks if n > FOLDED_FROM else [[rank] for rank in range(n)]
    for row in rows[:MAX_RANKS]:
        table.add_row(span(row), *cells[row[0]])
    if len(rows) > MAX_RANKS:
        table.caption = f"ranks {rows[MAX_RANKS][0]} ... {n - 1} are left out"
    return table


def slowest(study: Study) -> RenderableType | None:
    """Count how often each rank and node was the slowest; None without records."""
    result = study.points[-1]
    if not result.slowest:
        return None
    unit, scale = figures.unit_of([result.metrics.step_time_s])
    digits = figures.digits_of(result.metrics.step_time_s / scale)
    table = Table(
        title=f"the slowest of each step: {unit} per step beyond the median",
        box=box.SIMPLE_HEAD,
        padding=0,
        min_width=WIDTH - 20,
    )
    for name in ("who", "steps", "beyond"):
        table.add_column(name, justify="right", no_wrap=True)
    of_nodes = grouped((rank.node, (rank.steps, rank.seconds)) for rank in result.slowest_ranks)
    rows: list[tuple[str, int, float]] = [
        (f"node {node}", sum(steps for steps, _ in excesses), sum(beyond for _, beyond in excesses))
        for node, excesses in (of_nodes.items() if len(of_nodes) > 1 else ())
    ]
    rows += [(f"rank {rank.rank}", rank.steps, rank.seconds) for rank in result.slowest_ranks]
    for who, steps, beyond in rows[:MAX_RANKS]:
        table.add_row(who, str(steps), f"{beyond / scale:{digits}}")
    if len(rows) > MAX_RANKS:
        table.caption = f"{len(rows) - MAX_RANKS} ranks are left out, which cost less"
    return table


# Program table ------------------------------------------------------------------------------------

# parts of a rank's time by JSON field
COLUMNS = {
    "compute_s": "compute",
    "comm_s": "communication",
    "exposed_comm_s": "exposed",
    "wait_s": "wait",
    "idle_s": "idle",
}

MAX_ROWS = 16  # lines in a terminal, before a count of the others


def rows(trace: Trace, clocks: Floats) -> list[dict[str, Any]]:
    """Split each rank's time [s].

    ``exposed_comm_s`` is communication without compute, ``wait_s`` waiting without either, and
    ``idle_s`` the rest until the rank's end, its entry of ``clocks``, shape `(world_size,)` [s].
    """
    spans = _spans(trace, len(clocks))
    rank_rows = []
    for rank, clock in enumerate(clocks.tolist()):
        compute, comm, wait = (_union(spans[kind][rank]) for kind in ("compute", "comm", "wait"))
        busy = _length(compute)
        both = _length(_union([compute, comm]))
        all_three = _length(_union([compute, comm, wait]))
        rank_rows.append(
            {
                "rank": rank,
                "compute_s": busy,
                "comm_s": _length(comm),
                "exposed_comm_s": both - busy,
                "wait_s": all_three - both,
                "idle_s": max(clock - all_three, 0.0),
                "end_s": clock,
            }
        )
    return rank_rows


def lines(trace: Trace, clocks: Floats) -> list[str]:
    """Write the same as a table of plain text; equal neighbours share a line."""
    rank_rows = rows(trace, clocks)
    head = ["rank", *COLUMNS.values(), "end"]
    times = [[row[name] for name in (*COLUMNS, "end_s")] for row in rank_rows]
    texts = [[seconds(time) if time > 0 else "0 s" for time in row] for row in times]
    equal_ranks = [
        list(ranks) for _, ranks in groupby(range(len(rank_rows)), key=texts.__getitem__)
    ]
    body = [[span(ranks), *texts[ranks[0]]] for ranks in equal_ranks[:MAX_ROWS]]
    widths = [max(len(line[place]) for line in (head, *body)) for place in range(len(head))]
    shown = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in (head, *body)
    ]
    if left := sum(map(len, equal_ranks[MAX_ROWS:])):
        shown.append(f"and {left} more ranks; --json has them all")
    return shown


def _spans(trace: Trace, world_size: int) -> dict[str, list[list[Floats]]]:
    """Sort spans by kind and rank, each of shape `(num_spans, 2)`."""
    spans: dict[str, list[list[Floats]]] = {
        kind: [[] for _ in range(world_size)] for kind in ("compute", "comm", "wait")
    }
    for block in trace.blocks:
        activity = ACTIVITIES[block.activity]
        kind = activity if activity in ("comm", "wait") else "compute"
        both = np.stack(np.broadcast_arrays(block.start, block.end), axis=-1).reshape(-1, 2)
        for rank, pair in zip(np.asarray(block.ranks).tolist(), both, strict=True):
            spans[kind][rank].append(pair[None])
    return spans


def _union(pieces: Iterable[Floats]) -> Floats:
    """Merge intervals into disjoint ones."""
    spans = np.concatenate([np.empty((0, 2)), *pieces])
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.r_[True, spans[1:, 0] > reach[:-1]]
    last = np.r_[np.flatnonzero(first)[1:] - 1, len(spans) - 1]
    return np.stack([spans[first, 0], reach[last]], axis=-1)


def _length(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
