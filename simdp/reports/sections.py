"""Sections: parts of a report as plain values, drawn by the terminal and by the page.

Texts are plain, never HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from simdp.reports.figures import Row


class Tile(NamedTuple):
    """A key figure."""

    name: str
    value: str  # with its unit
    note: str = ""  # a few words below it; may be empty


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    kind: ClassVar[str]

    title: str
    note: str = field(default="", kw_only=True)  # a line below the content; may be empty
    folded: bool = field(default=False, kw_only=True)  # closed at first


@dataclass(frozen=True)
class Summary(Section):
    """Key figures, and rows of names and facts."""

    kind = "summary"

    tiles: Sequence[Tile] = ()
    rows: Sequence[Row] = ()


@dataclass(frozen=True)
class Verdict(Section):
    """Findings or warnings."""

    kind = "verdict"

    lines: Sequence[str] = ()  # whole sentences, the most important first
    level: Literal["good", "note", "warning"] = "note"


@dataclass(frozen=True)
class Table(Section):
    """A table for the terminal and the page, where its columns sort."""

    kind = "table"

    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()  # a `TableCell` has a value to sort by
    # whether each column holds figures, which a terminal aligns right
    figures: Sequence[bool] = field(default=(), kw_only=True)
    num_keys: int = field(default=0, kw_only=True)  # number of first columns that name a row


@dataclass(frozen=True)
class Timeline(Section):
    """Rows of ranks and their streams over time, with zoom and filters."""

    kind = "timeline"

    data: Mapping[str, Any] = field(default_factory=dict)  # of `simdp.reports.page.timeline.packed`
    caption: str = ""  # text alternative


@dataclass(frozen=True)
class Ledger(Section):
    """Samples of each rank in each optimizer step, a panel for each number of ranks."""

    kind = "ledger"

    data: Mapping[str, Any] = field(default_factory=dict)  # of `simdp.reports.page.audit.panels`
    caption: str = ""  # text alternative


@dataclass(frozen=True)
class LinkGraph(Section):
    """Nodes, and links between them coloured by load."""

    kind = "graph"

    nodes: Sequence[str] = ()
    # places of both ends in ``nodes``, load from 0 to 1, description
    links: Sequence[tuple[int, int, float, str]] = ()
    caption: str = ""  # text alternative


@dataclass(frozen=True)
class Source(Section):
    """Verbatim text to copy: YAML, a command line."""

    kind = "source"

    source: str = ""
    name: str = ""  # file name or kind; may be empty


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str  # heading and window title
    about: str  # a line below: model, cluster and method
    sections: Sequence[Section]
    foot: str  # scenario, seed, version


def num_texts(columns: Sequence[tuple[str, bool]]) -> int:
    """Count the text columns before the first column of figures."""
    return next((n for n, (_, is_number) in enumerate(columns) if is_number), len(columns))


def markdown_table(columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table of columns, each a head and whether it holds figures."""
    heads, figures = zip(*columns, strict=True)
    lines = [heads, ["--:" if is_number else "---" for is_number in figures], *rows]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def table_of(
    title: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[str]],
    note: str = "",
    num_keys: int = 0,
) -> Table:
    """Make a table of columns, each a head and whether it holds figures; others as in `Table`."""
    heads, figures = zip(*columns, strict=True)
    return Table(title, heads, list(rows), note=note, figures=figures, num_keys=num_keys)
