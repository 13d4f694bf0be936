"""Sections of one run, in the words of the terminal's summary."""

from __future__ import annotations

from simdp.reports import table
from simdp.reports.answer_rows import step_shares
from simdp.reports.figures import nbytes, percent, seconds
from simdp.reports.page import ranks
from simdp.reports.page.links import links
from simdp.reports.page.memory import memory
from simdp.reports.page.sections import Cell, Section, Summary, Table, Tile, Verdict
from simdp.reports.page.step import steps
from simdp.reports.page.timeline import timeline
from simdp.reports.verdicts import of_run
from simdp.results.result import Advice, Result


def sections(result: Result, advice: Advice | None = None) -> list[Section]:
    """Make the sections of a run, without those that every page has."""
    return [
        *verdict(result, advice),
        summary(result),
        step(result),
        *mfu(result),
    ]


def pictures(result: Result) -> list[Section]:
    """Make the sections of all that happened within a run, one with a trace above all."""
    return [
        *timeline(result),
        *ranks.stragglers(result),
        *ranks.every_rank(result),
        *memory(result),
        *links(result),
    ]


def verdict(result: Result, advice: Advice | None) -> list[Section]:
    """What limits the run, what would help, and what to be careful of."""
    m, rows = result.metrics, table.fact_rows(result, advice)
    said_of = of_run(result)
    found = list(said_of.lines)
    found += [f"{name}: {said}" for name, said in rows if name == "would help"]
    made: list[Section] = [Verdict("Verdict", found, "good" if said_of.good else "note")]
    careful = [f"{name}: {said}" for name, said in rows if name in result.remarks]
    if m["fits_memory"] is False:
        careful.insert(
            0, f"The model does not fit: it needs {nbytes(max(m['peak_memory_bytes']))}."
        )
    return made + [Verdict("Warnings", careful, "warning")] * bool(careful)


def summary(result: Result) -> Section:
    """The figures that matter most, and all that the terminal says."""
    m, rows = result.metrics, table.fact_rows(result)
    said = dict(rows)
    tiles = [
        Tile("step time", seconds(m["step_time_s"]), said.get("90 % interval of a step", "")),
        Tile(
            "throughput",
            said["throughput"].partition(", ")[0],
            said["throughput"].partition(", ")[2],
        ),
        Tile("compute", percent(m["utilization"]), "of a step"),
        Tile("peak memory", said["peak memory"]),
    ]
    return Summary("Summary", tiles, rows)


def mfu(result: Result) -> list[Section]:
    """What a step is spent on beside useful arithmetic; nothing where compute has no kernels."""
    rows: list[list[Cell | str]] = [
        [name, Cell(percent(share), share), "-" if rate is None else percent(rate)]
        for name, share, rate in step_shares(result)
        if share
    ]
    if not rows:
        return []
    note = f"MFU {percent(result.metrics['mfu'])}: the model's FLOPs over what the devices could do"
    heads = ["spent on", "share of a step", "of the peak"]
    return [Table("Where the MFU goes", heads, rows, note=f"{note} at their peak.")]


def step(result: Result) -> Section:
    """What a step's time is made of."""
    return steps("Where a step's time goes", ["step"], [result.metrics])
