"""Sections: parts of a report as plain values, drawn by the terminal and by the page.

Texts are plain, never HTML: they are shown as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from simdp.reports.figures import Row


class Tile(NamedTuple):
    """A key figure.

    Attributes
    ----------
    name, value : str
        What it is, and the figure with its unit.
    note : str
        A few words below it; may be empty.
    """

    name: str
    value: str
    note: str = ""


class Axis(NamedTuple):
    """An axis of a chart.

    Attributes
    ----------
    label : str
        With its unit: ``"Step time [ms]"``.
    scale : {"value", "log", "log2", "category"}
        Of a category axis the series' places are names; a ``log2`` axis has its ticks at them.
    unit : str
        What is written behind a value; may be empty.
    from_zero : bool
        Whether the horizontal axis of values begins at 0; the vertical one always does.
    """

    label: str
    scale: Literal["value", "log", "log2", "category"] = "value"
    unit: str = ""
    from_zero: bool = False


class Series(NamedTuple):
    """A line of a chart, a set of points, bars, or an area.

    Attributes
    ----------
    name : str
        As in the legend.
    x : sequence of float or str
        Places; names on a category axis.
    y : sequence of float or None
        Values; None is a gap.
    look : {"line", "points", "bar", "area", "steps"}
        ``points`` stand alone and are open, as measurements are; an ``area`` is filled down to the
        series that it is stacked on; ``steps`` is an area whose values last until the next.
    low, high : sequence of float or None
        A band around it, such as an interval.
    color : str
        ``"#RRGGBB"``; without one the house's colours in turn.
    hatch : str
        Matplotlib's pattern, which repeats what the colour says.
    dashed : bool
        Whether it is theory.
    stack : str
        Series of one name stand on top of each other.
    labels : sequence of str
        Names of points, written beside them; empty for none.
    """

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    look: Literal["line", "points", "bar", "area", "steps"] = "line"
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    color: str = ""
    hatch: str = ""
    dashed: bool = False
    stack: str = ""
    labels: Sequence[str] = ()


class ReferenceLine(NamedTuple):
    """A line across a chart, such as a capacity.

    Attributes
    ----------
    text : str
        Written at its end.
    value : float
        Where it crosses its axis.
    axis : {"x", "y"}
        Which axis that is.
    """

    text: str
    value: float
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    title : str
        Its heading.
    note : str
        A line below its content; may be empty.
    folded : bool
        Whether it is closed until somebody opens it.
    """

    kind: ClassVar[str]

    title: str
    note: str = field(default="", kw_only=True)
    folded: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Summary(Section):
    """Key figures, and rows of a name and what is said of it.

    Attributes
    ----------
    tiles : sequence of Tile
        The few that matter most.
    rows : sequence of Row
        All others.
    """

    kind = "summary"

    tiles: Sequence[Tile] = ()
    rows: Sequence[Row] = ()


@dataclass(frozen=True)
class Verdict(Section):
    """What was found, or what to be careful of.

    Attributes
    ----------
    lines : sequence of str
        A sentence each, the most important first.
    level : {"good", "note", "warning"}
        How it looks.
    """

    kind = "verdict"

    lines: Sequence[str] = ()
    level: Literal["good", "note", "warning"] = "note"


@dataclass(frozen=True)
class Table(Section):
    """A table, drawn by the terminal and by the page, where its columns sort.

    Attributes
    ----------
    heads : sequence of str
        Names of the columns.
    rows : sequence of sequence of str
        Cells; a `TableCell` has a value to sort by.
    figures : sequence of bool
        Which columns hold figures, which a terminal sets right.
    num_keys : int
        So many first columns name a row.
    """

    kind = "table"

    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[bool] = field(default=(), kw_only=True)
    num_keys: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Chart(Section):
    """Lines, points, bars and areas over one pair of axes.

    Attributes
    ----------
    x, y : Axis
        The axes.
    series : sequence of Series
        What is drawn.
    marks : sequence of Mark
        Lines across.
    said : str
        What a reader who does not see it is told first; its data are in a table below it.
    sideways : bool
        Whether bars lie: ``x`` goes down, ``y`` to the right.
    """

    kind = "chart"

    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    marks: Sequence[ReferenceLine] = ()
    said: str = ""
    sideways: bool = False


@dataclass(frozen=True)
class Timeline(Section):
    """Who did what, when: rows of ranks and their streams; it zooms and filters.

    Attributes
    ----------
    data : mapping
        As `simdp.reports.page.timeline.packed` gives it.
    said : str
        As of a chart.
    """

    kind = "timeline"

    data: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True)
class LinkGraph(Section):
    """Nodes, and links between them coloured by their load.

    Attributes
    ----------
    nodes : sequence of str
        Names.
    links : sequence of (int, int, float, str)
        Places of both ends in ``nodes``, the load from 0 to 1, and what is said of it.
    said : str
        As of a chart.
    """

    kind = "graph"

    nodes: Sequence[str] = ()
    links: Sequence[tuple[int, int, float, str]] = ()
    said: str = ""


@dataclass(frozen=True)
class Text(Section):
    """Paragraphs."""

    kind = "text"

    paragraphs: Sequence[str] = ()


@dataclass(frozen=True)
class Source(Section):
    """Text that is set letter by letter and can be copied: YAML, a command line.

    Attributes
    ----------
    source : str
        The text.
    name : str
        What a file of it would be called; may be empty.
    """

    kind = "source"

    source: str = ""
    name: str = ""


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes
    ----------
    title : str
        Its heading, and the window's title.
    about : str
        A line below it: which model, cluster and method.
    sections : sequence of Section
        From the top.
    foot : str
        What it was made from: scenario, seed, version.
    """

    title: str
    about: str
    sections: Sequence[Section]
    foot: str


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
