"""Tables for the terminal that never cut a number; wide ones continue below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from simdp.reports import sections
from simdp.reports.figures import WIDTH

BETWEEN = 2  # blanks between two cells
LEAST_KEY = 12  # least width of a wrapped text column
LEAST_NAME = 32  # width of a row's name that is worth more than an optional column
LEAST_LINE = 30  # least width of a kind's line beside its name


def wide_table(
    section: sections.Table, limits: Mapping[int, int] | None = None, padding: int = 1
) -> Table:
    """Draw a table as wide as its cells.

    Columns in ``limits`` are wrapped at so many characters; ``padding`` follows each cell.
    """
    columns = list(zip(section.heads, section.figures, strict=True))
    return _made(section.title, columns, section.rows, limits or {}, padding)


def narrow_tables(section: sections.Table) -> list[Table]:
    """Draw a table as wide as a terminal; further columns follow in tables below it.

    Every table has the columns that name a row, long ones wrapped.
    """
    title, rows, num_keys = section.title, section.rows, section.num_keys
    columns = list(zip(section.heads, section.figures, strict=True))
    widths = [
        max(map(len, [head, *(row[place] for row in rows)])) + BETWEEN
        for place, (head, _) in enumerate(columns)
    ]
    widest = max(widths[num_keys:], default=0)
    room = dict(enumerate(widths[:num_keys]))
    while room and sum(room.values()) + widest > WIDTH - 1 and max(room.values()) > LEAST_KEY:
        room[max(room, key=lambda key: room[key])] -= 1
    tables, place = list[Table](), num_keys
    while place < len(columns) or not tables:
        left = WIDTH - 1 - sum(room.values())
        shown = [*range(num_keys)]
        while place < len(columns) and (len(shown) == num_keys or widths[place] <= left):
            left -= widths[place]
            shown.append(place)
            place += 1
        cells = [[row[number] for number in shown] for row in rows]
        heads = [columns[number] for number in shown]
        limits = {key: width - BETWEEN for key, width in room.items()}
        tables.append(_made("" if tables else title, heads, cells, limits))
    return tables


def filled(lines: Iterable[str], indent: str = "") -> Text:
    """Wrap lines at a terminal's width; ``indent`` leads each, twice where it goes on."""
    return Text(
        "\n".join(
            fill(line, WIDTH, initial_indent=indent, subsequent_indent=2 * indent) for line in lines
        )
    )


class RowGroup(NamedTuple):
    """Rows below a line of their own, which may be empty."""

    head: str
    rows: Sequence[Sequence[str]]


def fitted_table(
    title: str,
    columns: Sequence[tuple[str, bool]],
    groups: Sequence[RowGroup],
    optional: Sequence[str],
    width: int = WIDTH,
) -> tuple[Text, list[str]]:
    """Draw a table with one line for each row, no wider than a terminal.

    Parameters
    ----------
    title : str
        Above it.
    columns : sequence of (str, bool)
        Heads, and whether a column holds figures; the first one names the row.
    groups : sequence of RowGroup
        The rows.
    optional : sequence of str
        Heads of columns that are left out, in this order, until the first column has room; those
        that still fit then come back. If it still lacks room, its texts are shortened.
    width : int
        Of the terminal.

    Returns
    -------
    (Text, list of str)
        The table, and the heads of the columns that are left out.
    """
    heads, figures = zip(*columns, strict=True)
    lines = [heads, *(row for group in groups for row in group.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    margin = 3 if any(group.head for group in groups) else 1
    shown = _shown_columns(widths, [heads.index(head) for head in optional], width - margin)
    room = width - margin - sum(widths[place] + BETWEEN for place in shown)
    widths[0] = min(widths[0], max(room, LEAST_KEY))

    def line(cells: Sequence[str]) -> str:
        parts = [shortened(cells[0], widths[0]).ljust(widths[0])]
        for place in shown:
            cell = cells[place]
            parts.append(cell.rjust(widths[place]) if figures[place] else cell.ljust(widths[place]))
        return (" " * margin + (" " * BETWEEN).join(parts)).rstrip()

    across = margin - 1 + widths[0] + sum(widths[place] + BETWEEN for place in shown)
    drawn = [fill(title, width), "", line(heads), " " + "─" * across]
    for group in groups:
        drawn += [" " + shortened(group.head, width - 1)] if group.head else []
        drawn += map(line, group.rows)
    left_out = [head for head in optional if heads.index(head) not in shown]
    return Text("\n".join([*drawn, ""])), left_out


def _shown_columns(widths: Sequence[int], optional: Sequence[int], room: int) -> list[int]:
    """Choose the columns of `fitted_table` after the first one, which gets `LEAST_NAME` or less."""
    shown, left_out = list(range(1, len(widths))), list[int]()
    spare = room - min(widths[0], LEAST_NAME) - sum(widths[place] + BETWEEN for place in shown)
    for place in optional:
        if spare < 0:
            shown.remove(place)
            left_out.append(place)
            spare += widths[place] + BETWEEN
    for place in left_out:  # the last one may have made room for another
        if spare >= widths[place] + BETWEEN:
            shown.append(place)
            spare -= widths[place] + BETWEEN
    return sorted(shown)


def shortened(text: str, size: int) -> str:
    """Shorten a text in its middle."""
    if len(text) <= size:
        return text
    first = (size - 2) // 2
    return f"{text[:first]}...{text[len(text) - (size - 3 - first) :]}"


def _made(
    title: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[str]],
    limits: Mapping[int, int],
    padding: int = 1,
) -> Table:
    """Draw columns, each a head and whether it holds figures, which are aligned right."""
    padded = (0, padding, 0, 0)
    table = Table(title=Text(title) if title else None, box=box.SIMPLE_HEAD, padding=padded)
    for place, (head, is_number) in enumerate(columns):
        table.add_column(
            Text(head),
            justify="right" if is_number else "left",
            no_wrap=place not in limits,
            overflow="fold",
            max_width=limits.get(place),
        )
    for row in rows:
        table.add_row(*map(Text, row))
    # Also on a narrow terminal: a number that is cut off is worse than a long line.
    wide = Console(width=1000)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return table


def kinds(families: Mapping[str, Mapping[str, str]]) -> RenderableType:
    """List the kinds of families: family, kind, description."""
    rows = [
        (family, kind, line.replace("`", ""))
        for family, members in families.items()
        for kind, line in members.items()
    ]
    widths = [max(len(row[column]) for row in rows) + 2 for column in (0, 1)]
    lead = sum(widths)
    return Text("\n".join(_entry(f"{a:{widths[0]}}{b:{widths[1]}}", c, lead) for a, b, c in rows))


def _entry(lead: str, line: str, indent: int) -> str:
    """Write one kind; its description is wrapped and indented."""
    room = max(WIDTH - 1, indent + LEAST_LINE)
    return fill(
        line, room, initial_indent=lead, subsequent_indent=" " * indent, break_on_hyphens=False
    )
