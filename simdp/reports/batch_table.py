"""A table of the pieces of each batch that devices compute on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from simdp.reports.wide_table import wide_table
from simdp.results.batches import Piece

MAX_ROWS = 128
"""Rows of the table; of a longer run the first steps are shown, and the last one."""

MAX_RANKS = 64
"""Ranks that the table lists."""


def batch_table(steps: Iterable[Sequence[Piece]], world_size: int) -> RenderableType | None:
    """Write a line per device and micro-step; None where there is nothing to say.

    Parameters
    ----------
    steps : iterable of sequence of Piece
        Of every step, of the first `MAX_RANKS` ranks.
    world_size : int
        Number of ranks.
    """
    shown, last, num_left_out = list[Piece](), list[Piece](), 0
    for step in steps:
        if not shown or len(shown) + 2 * len(step) <= MAX_ROWS:
            shown += step
            continue
        num_left_out += bool(last)
        last = list(step)
    if not shown:
        return None
    several = any(piece.micro_step for piece in (*shown, *last))
    heads = ["step", *["micro-step"] * several, "device", "input size", "output size"]
    rows = [_row(piece, several) for piece in shown]
    if num_left_out:
        rows.append(["..."] * len(heads))
    rows += [_row(piece, several) for piece in last]
    columns = [(head, not head.endswith("size")) for head in heads]
    table = wide_table("batches, device by device", columns, rows)
    left_out = [f"{num_left_out} steps"] * bool(num_left_out)
    if world_size > MAX_RANKS:
        left_out.append(f"ranks {MAX_RANKS} ... {world_size - 1}")
    if left_out:
        table.caption = f"{' and '.join(left_out)} are left out"
    return table


def _row(piece: Piece, several: bool) -> list[str]:
    idle = not piece.inputs
    inputs = ", ".join(str(list(shape)) for shape in piece.inputs)
    return [
        str(piece.step),
        *[str(piece.micro_step)] * several,
        str(piece.rank),
        "nothing" if idle else inputs,
        "" if idle else str(list(piece.output)),
    ]
