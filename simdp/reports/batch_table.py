"""Table of batches: input and output sizes by step, micro-step and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import RenderableType

from simdp.reports.figures import span
from simdp.reports.sections import table_of
from simdp.reports.wide_table import wide_table
from simdp.results.result import MicrobatchPiece

MAX_ROWS = 64  # rows of the table; of longer runs the first and the last steps
MAX_RANKS = 64  # ranks that the table lists
BatchRow = tuple[str, ...]


class UniformSteps(NamedTuple):
    """Consecutive steps with equal input shapes on all devices."""

    first: int  # step number
    last: int  # step number
    rows: list[BatchRow]  # micro-step, devices, input and output sizes


def batch_table(
    steps: Iterable[Sequence[MicrobatchPiece]], world_size: int
) -> RenderableType | None:
    """Write a line for all devices and steps with equal inputs; None without any.

    ``steps`` has the pieces of every step on the first `MAX_RANKS` ranks.
    """
    groups: list[UniformSteps] = []
    for step in steps:
        rows = _rows(step)
        if groups and groups[-1].rows == rows:
            groups[-1] = groups[-1]._replace(last=step[0].step)
        elif step:
            groups.append(UniformSteps(step[0].step, step[0].step, rows))
    if not groups:
        return None
    shown = _first(groups)
    left_out = groups[len(shown) : -1]
    rest = [groups[-1]] if len(shown) < len(groups) else []
    several = any(row[0] != "0" for group in (*shown, *rest) for row in group.rows)
    heads = ["steps", *["micro-step"] * several, "devices", "input size", "output size"]
    lines = [line for group in shown for line in _lines(group, several)]
    if left_out:
        lines.append(["..."] * len(heads))
    lines += [line for group in rest for line in _lines(group, several)]
    columns = [(head, not head.endswith("size")) for head in heads]
    table = wide_table(table_of("batches, device by device", columns, lines))
    num_left_out = sum(group.last - group.first + 1 for group in left_out)
    missing = [f"{num_left_out} steps"] * bool(num_left_out)
    if world_size > MAX_RANKS:
        missing.append(f"ranks {MAX_RANKS} ... {world_size - 1}")
    if missing:
        table.caption = f"{' and '.join(missing)} are left out"
    return table


def _first(groups: Sequence[UniformSteps]) -> list[UniformSteps]:
    """Choose as many of the first steps as there is room for beside the last; at least one."""
    room, shown = MAX_ROWS - len(groups[-1].rows), list[UniformSteps]()
    for group in groups:
        room -= len(group.rows)
        if shown and room < 0:
            break
        shown.append(group)
    return shown


def _rows(step: Sequence[MicrobatchPiece]) -> list[BatchRow]:
    """Make a row for neighbouring devices with equal shapes in a micro-step."""
    rows = list[BatchRow]()

    def shapes_of(piece: MicrobatchPiece) -> tuple[int, tuple[Any, ...], tuple[int, ...]]:
        return piece.micro_step, piece.inputs, piece.output if piece.inputs else ()

    for (micro_step, inputs, output), group in groupby(step, shapes_of):
        ranks = [piece.rank for piece in group]
        shapes = ", ".join(str(list(shape)) for shape in inputs)
        rows.append(
            (
                str(micro_step),
                span(ranks),
                shapes or "nothing",
                str(list(output)) if inputs else "",
            )
        )
    return rows


def _lines(steps: UniformSteps, several: bool) -> list[list[str]]:
    number = span((steps.first, steps.last))
    return [[number, *row[:1] * several, *row[1:]] for row in steps.rows]
