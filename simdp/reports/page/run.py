"""Sections of a run, and the last ones of every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import join
from typing import NamedTuple

import numpy as np

from simdp.files import format_yaml
from simdp.reports import figures, table
from simdp.reports.answers import less, of_run, rates, step_shares
from simdp.reports.charts.memory import memory_over_step
from simdp.reports.charts.sweep import steps
from simdp.reports.figures import TableCell, nbytes, percent, seconds
from simdp.reports.page.timeline import timeline
from simdp.reports.sections import LinkGraph, Section, Source, Summary, Table, Tile, Verdict
from simdp.results.metrics import STEP_HEADS, per_rank
from simdp.results.result import Advice, Result

LEAD, BETWEEN = "the link from ", " to "


class LinkLoad(NamedTuple):
    """Load of a link of `Result.network`."""

    link: str
    nbytes: float  # sent in a step
    utilization: float  # share of a step in which its bytes take its bandwidth

    @property
    def text(self) -> str:
        """Name the link in short."""
        return self.link.removeprefix(LEAD)


def links(result: Result) -> list[Section]:
    """Draw the links as a graph, if the ends of all are known, and as a table."""
    loads = [
        LinkLoad._make(row[name] for name in LinkLoad._fields)
        for row in result.network.get("links") or ()
    ]
    if not loads:
        return []
    scope = _trace_caption(result, len(loads))
    return [*_graph(loads, scope), _table(loads, scope)]


def _trace_caption(result: Result, num_listed: int) -> str:
    count = result.network.get("num_links_used")
    if count is None:
        return "Links of a device and of a node, as NCCL's model loads them."
    if count <= num_listed:
        return f"All {count} links that are used."
    return f"The {num_listed} busiest of {count:,} links that are used."


def _graph(loads: Sequence[LinkLoad], scope: str) -> list[LinkGraph]:
    ends = [pair for load in loads if (pair := _ends(load.link)) is not None]
    if len(ends) < len(loads):
        return []
    nodes = sorted({end for pair in ends for end in pair}, key=_natural)
    edges = [
        (
            nodes.index(a),
            nodes.index(b),
            min(float(load.utilization), 1.0),
            f"{load.text}: {nbytes(load.nbytes)} per step, {percent(load.utilization)} of the time",
        )
        for (a, b), load in zip(ends, loads, strict=True)
    ]
    return [LinkGraph("Links by their load", nodes, edges, caption=scope)]


def _ends(name: str) -> tuple[str, str] | None:
    """Read both ends from a link's name; None without two ends."""
    if not name.startswith(LEAD):
        return None
    start, between, end = name.removeprefix(LEAD).partition(BETWEEN)
    return (start, end) if between else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order names by the numbers in them: rank 2 before rank 10."""
    return tuple((int(word), "") if word.isdecimal() else (-1, word) for word in name.split())


def _table(loads: Sequence[LinkLoad], scope: str) -> Table:
    rows = [
        (
            load.text,
            TableCell(nbytes(load.nbytes), float(load.nbytes)),
            TableCell(percent(load.utilization), float(load.utilization)),
        )
        for load in loads
    ]
    return Table(
        "Links in figures",
        ("link", "sent per step", "busy"),
        rows,
        note=f"{scope} Busy is the part of its bandwidth that a link's bytes take.",
        folded=True,
    )


MOST_ROWS = 256  # ranks in the table; of more the longest computing ones, and the first


def stragglers(result: Result) -> list[Section]:
    """Make the tables of each straggler's cost, and of the slowest ranks."""
    step_time, made = result.metrics.step_time_s, list[Section]()
    if result.lost:
        rows = [
            (
                cause,
                _where(ranks),
                TableCell(seconds(saved), saved),
                "-" if saved is None else less(step_time - saved, step_time),
            )
            for cause, ranks, _, saved in result.straggler_costs
        ]
        heads = ("straggler", "ranks", "costs per step", "a step without it")
        note = "What a step would save without that one alone; together they may cost another sum."
        made.append(Table("What stragglers cost", heads, rows, note=note))
    if result.slowest:
        several = len({rank.node for rank in result.slowest_ranks}) > 1
        slowest_rows: list[tuple[TableCell, ...]] = [
            (
                TableCell(str(rank), rank),
                *[TableCell(str(node), node)] * several,
                TableCell(str(steps), steps),
                TableCell(seconds(beyond), beyond),
            )
            for rank, node, steps, beyond in result.slowest_ranks[:MOST_ROWS]
        ]
        columns = ("rank", *["node"] * several, "slowest of so many steps", "beyond the median")
        made.append(Table("The slowest of each step", columns, slowest_rows, folded=True))
    return made


def _where(ranks: list[int] | None) -> str:
    if ranks is None:
        return "all"
    return ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)


def every_rank(result: Result) -> list[Section]:
    """Make the table of each rank's times; nothing without a trace."""
    trace, n, m = result.trace, result.world_size, result.metrics
    if trace is None or not trace.blocks or n == 1:
        return []
    times = per_rank(trace, n, max(block.step for block in trace.blocks) + 1)
    unit, scale = figures.unit_of([m.step_time_s])
    digits = figures.digits_of(m.step_time_s / scale)
    slowest = np.argsort(-times.compute_s, kind="stable")[: MOST_ROWS - 1].tolist()
    shown = range(n) if n <= MOST_ROWS else sorted({0, *slowest})
    last = m.loss_per_rank[-1:] if m.loss_per_rank else []
    rows = [
        (
            TableCell(str(rank), rank),
            *(
                TableCell(f"{v / scale:{digits}}", v)
                for v in (float(getattr(times, key)[rank]) for key in STEP_HEADS)
            ),
            *(
                TableCell(nbytes(sizes[rank]), float(sizes[rank]))
                for sizes in (m.bytes_sent_per_rank, m.peak_memory_bytes)
            ),
            *(TableCell(figures.number(losses[rank]), losses[rank]) for losses in last if losses),
        )
        for rank in shown
    ]
    heads = ("rank", *STEP_HEADS.values(), "sent", "peak memory", *["last loss"] * len(last))
    note = f"A step's time in {unit}."
    if len(rows) < n:
        note += f" {len(rows)} of {n:,} ranks: those that compute longest, and the first."
    return [Table("Every rank", heads, rows, note=note, folded=True)]


def sections(result: Result, advice: Advice | None = None) -> list[Section]:
    """Make the sections of a run, except those that every page has."""
    return [*verdict(result, advice), summary(result), step(result), *mfu(result)]


def pictures(result: Result) -> list[Section]:
    """Make the sections of events within a run, most of which need a trace."""
    return [
        *timeline(result),
        *stragglers(result),
        *every_rank(result),
        *filter(None, [memory_over_step(result)]),
        *links(result),
    ]


def verdict(result: Result, advice: Advice | None) -> list[Section]:
    """Write the verdict, the advice, and warnings."""
    rows = table.fact_rows(result, advice)
    said_of = of_run(result)
    lines = list(said_of.lines)
    lines += [f"{row.label}: {row.text}" for row in rows if row.key == "advice"]
    made: list[Section] = [Verdict("Verdict", lines, "good" if said_of.good else "note")]
    careful = [f"{row.label}: {row.text}" for row in rows if row.key in result.remarks]
    return made + [Verdict("Warnings", careful, "warning")] * bool(careful)


def summary(result: Result) -> Section:
    """Make the main figures, and the facts of the terminal."""
    m, rows = result.metrics, table.fact_rows(result)
    by_key = {row.key: row.text for row in rows}
    samples, *tokens = rates(m)
    tiles = [
        Tile("step time", seconds(m.step_time_s), by_key.get("interval", "")),
        Tile("throughput", samples, *tokens),
        Tile("compute", percent(m.utilization), "of a step"),
        Tile("peak memory", by_key["peak_memory"]),
    ]
    return Summary("Summary", tiles, rows)


def mfu(result: Result) -> list[Section]:
    """Make the table of parts of a step that are not useful arithmetic; nothing without kernels."""
    rows: list[list[TableCell | str]] = [
        [name, TableCell(percent(share), share), str(percent(rate))]
        for name, share, rate in step_shares(result)
        if share
    ]
    if not rows:
        return []
    note = f"MFU {percent(result.metrics.mfu)}: the model's FLOPs over what the devices could do"
    heads = ["spent on", "share of a step", "of the peak"]
    return [Table("Where the MFU goes", heads, rows, note=f"{note} at their peak.")]


def step(result: Result) -> Section:
    """Draw the parts of a step."""
    return steps("Where a step's time goes", ["step"], [result.metrics])


def reproduce(command: Sequence[str], version: str = "") -> list[Section]:
    """Quote the command that made a page, and a line on the version; nothing without both."""
    lines = [join(["python", "-m", "simdp", *command]) if command else "", version]
    text = "\n".join(filter(None, lines))
    return [Source("How to reproduce it", source=text, name="command line") for _ in [text] if text]


def closing(
    scenario: Mapping[str, object], version: str, subcommand: str, command: Sequence[str] = ()
) -> list[Section]:
    """Make the last sections of a page: command line and scenario.

    ``scenario`` is as resolved and loads again with ``subcommand``, such as ``"run"``. Without the
    given ``command`` that for the scenario is shown.
    """
    name = f"{scenario.get('name') or 'scenario'}.yaml"
    given = ["python", "-m", "simdp", *(command or [subcommand, name])]
    lines = [
        join(given),
        f"# simdp {version}, NumPy {np.__version__}, seed {scenario.get('seed', 0)}",
    ]
    note = "The same scenario, seed and version give the same times on any machine."
    if not command or name in command:
        note += f" {name} is the scenario below."
    return [
        Source("How to reproduce it", note=note, source="\n".join(lines), name="command line"),
        Source(
            "The scenario, every default resolved",
            folded=True,
            source=format_yaml(dict(scenario)),
            name=name,
        ),
    ]
