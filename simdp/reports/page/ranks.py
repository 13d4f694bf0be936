"""Sections of the ranks: where the time of each goes, and what the slow ones cost."""

from __future__ import annotations

import numpy as np

from simdp.reports.answer_rows import less
from simdp.reports.figures import SHORT, digits_of, nbytes, number, seconds, unit_of
from simdp.reports.page.sections import Cell, Section, Table
from simdp.results.metrics import per_rank
from simdp.results.result import Result

MOST_ROWS = 256
"""Ranks in the table; of more those that compute longest, and the first."""


def stragglers(result: Result) -> list[Section]:
    """What each straggler costs, and who was the slowest of how many steps."""
    step_time, made = result.metrics["step_time_s"], list[Section]()
    if result.lost:
        rows = [
            (
                str(one["cause"]),
                _where(one["ranks"]),
                Cell(seconds(one["seconds"]), one["seconds"]),
                "-" if one["seconds"] is None else less(step_time - one["seconds"], step_time),
            )
            for one in result.lost
        ]
        heads = ("straggler", "ranks", "costs per step", "a step without it")
        said = "What a step would save without that one alone; together they may cost another sum."
        made.append(Table("What stragglers cost", heads, rows, note=said))
    if result.slowest:
        several = len({one["node"] for one in result.slowest}) > 1
        each: list[tuple[Cell, ...]] = [
            (
                Cell(str(one["rank"]), one["rank"]),
                *[Cell(str(one["node"]), one["node"])] * several,
                Cell(str(one["steps"]), one["steps"]),
                Cell(seconds(one["seconds"]), one["seconds"]),
            )
            for one in result.slowest[:MOST_ROWS]
        ]
        columns = ("rank", *["node"] * several, "slowest of so many steps", "beyond the median")
        made.append(Table("The slowest of each step", columns, each, folded=True))
    return made


def _where(ranks: list[int] | None) -> str:
    if ranks is None:
        return "all"
    return ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)


def every_rank(result: Result) -> list[Section]:
    """Where the time of each rank goes; none without a trace."""
    trace, n, m = result.trace, result.world_size, result.metrics
    if trace is None or not trace.blocks or n == 1:
        return []
    found = per_rank(trace, n, max(block.step for block in trace.blocks) + 1)
    unit, scale = unit_of([m["step_time_s"]])
    digits = digits_of(m["step_time_s"] / scale)
    slowest = np.argsort(-found["compute_s"], kind="stable")[: MOST_ROWS - 1].tolist()
    shown = range(n) if n <= MOST_ROWS else sorted({0, *slowest})
    rows = [
        (
            Cell(str(rank), rank),
            *(Cell(f"{v / scale:{digits}}", v) for v in (float(found[key][rank]) for key in SHORT)),
            _sized(m["bytes_sent_per_rank"][rank]),
            _sized(m["peak_memory_bytes"][rank]),
            _lost(m["loss_per_rank"][-1][rank] if m["loss_per_rank"] else None),
        )
        for rank in shown
    ]
    heads = ("rank", *SHORT.values(), "sent", "peak memory", "last loss")
    if not m["loss_per_rank"]:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    note = f"A step's time in {unit}."
    if len(rows) < n:
        note += f" {len(rows)} of {n:,} ranks: those that compute longest, and the first."
    return [Table("Every rank", heads, rows, note=note, folded=True)]


def _sized(value: float) -> Cell:
    return Cell(nbytes(value), float(value))


def _lost(value: float | None) -> Cell:
    return Cell(number(value), value)
