"""Sections and their HTML.

Texts are plain, never HTML: whatever stands in them is shown as it is.

Text is escaped by Jinja; data go into ``<script type="application/json">`` with every letter
escaped that could end it. A policy in the file's head lets a browser run the scripts written here,
by their hashes, and fetch nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from simdp.files import read_text
from simdp.reports import theme
from simdp.reports.answers import DURATIONS, ENERGIES
from simdp.reports.captions import LONG_UNITS, UNITS

# Sections -----------------------------------------------------------------------------------------


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


class Cell(NamedTuple):
    """A cell of a table.

    Attributes
    ----------
    text : str
        As shown.
    value : float or None
        What its column is sorted by, in SI units; without one, by the text.
    """

    text: str
    value: float | None = None


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


class Mark(NamedTuple):
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
    rows : sequence of (str, str)
        All others. A row without a name goes on with the one before.
    """

    kind = "summary"

    tiles: Sequence[Tile] = ()
    rows: Sequence[tuple[str, str]] = ()


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
    """A table whose columns sort.

    Attributes
    ----------
    heads : sequence of str
        Names of the columns.
    rows : sequence of sequence of Cell or str
        A column whose cells all are text is set left, others right.
    """

    kind = "table"

    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Cell | str]] = ()


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
    marks: Sequence[Mark] = ()
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
class Graph(Section):
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


# Rendering ----------------------------------------------------------------------------------------

HERE = Path(__file__).parent
ECHARTS = HERE / "echarts-6.1.0" / "echarts.min.js"
SCRIPTS = ("looks.js", "tables.js", "charts.js", "graph.js", "timeline.js", "page.js")
"""The page's own scripts, in the order in which they run."""


def render(page: Page, stream: BinaryIO) -> None:
    """Write a page as HTML.

    Parameters
    ----------
    page : Page
        Left as it is.
    stream : binary stream
        Where the bytes go; equal pages give equal bytes.
    """
    library, own = _scripts()
    text = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            ids=_ids(page.sections),
            style=Markup(read_text(HERE / "page.css")),
            scripts=[Markup(script) for script in (library, own)],
            hashes=[_hash(script) for script in (library, own)],
            looks=looks(),
            data_of=data_of,
            is_numeric=_is_numeric,
        )
    )
    stream.write(text.encode())


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["json"] = htmlsafe_json_dumps
    made.filters["cell"] = lambda one: one if isinstance(one, Cell) else Cell(one)
    return made


@cache
def _scripts() -> tuple[str, str]:
    """The library, and the page's own scripts as one; each is text that HTML holds as it is."""
    library = read_text(ECHARTS, "it comes with simdp")
    own = "\n".join(read_text(HERE / name) for name in SCRIPTS)
    return f"\n{library}\n", f"\n{own}\n"


def _hash(script: str) -> str:
    return "sha256-" + b64encode(sha256(script.encode()).digest()).decode()


def _ids(sections: tuple[Section, ...] | Any) -> list[str]:
    """Names of sections for links to them; each one once."""
    found: list[str] = []
    for section in sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or section.kind
        count = sum(other == name or other.startswith(f"{name}--") for other in found)
        found.append(f"{name}--{count + 1}" if count else name)
    return found


def _is_numeric(rows: Any, column: int) -> bool:
    """Whether a column holds figures."""
    return any(isinstance(row[column], Cell) and row[column].value is not None for row in rows)


def data_of(section: Section) -> Any:
    """What the scripts draw a section from, as plain data; None of one that needs no script."""
    if isinstance(section, Chart):
        return {
            "x": section.x._asdict(),
            "y": section.y._asdict(),
            "series": [one._asdict() for one in section.series],
            "marks": [one._asdict() for one in section.marks],
            "sideways": section.sideways,
        }
    if isinstance(section, Graph):
        return {"nodes": section.nodes, "links": section.links}
    return section.data if isinstance(section, Timeline) else None


def looks() -> dict[str, Any]:
    """The house's colours and patterns."""
    return {
        "series": theme.SERIES,
        "fills": {name: fill._asdict() for name, fill in theme.FILLS.items()},
    }


# Told ---------------------------------------------------------------------------------------------

SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))

SCALES = {
    **dict((*UNITS, *LONG_UNITS, *SIZES, *ENERGIES)),
    **{unit: scale for unit, scale, _ in DURATIONS},
    "%": 0.01,
    "x": 1.0,
    "USD": 1.0,
    "": 1.0,
}
"""What a figure's unit makes of it; within a column all are of one dimension."""

FIGURE = re.compile(r"[+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?")
UNIT = re.compile(r" ?([A-Za-z%]*)(?:/s)?\*?")


def value_of(text: str) -> float | None:
    """Read the figure that a cell begins with, in the unit that all of its column are brought to.

    None for a text that begins with no figure, or one whose unit is unknown.
    """
    text = text.strip()
    found = FIGURE.match(text)
    if found is None:
        return None
    unit = UNIT.match(text, found.end())
    scale = None if unit is None else SCALES.get(unit[1])
    return None if scale is None else float(found[0].replace(",", "")) * scale


def told(
    title: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[str]],
    note: str = "",
) -> Table:
    """Make a table of what the terminal shows.

    Parameters
    ----------
    title : str
        Above it.
    columns : sequence of (str, bool)
        The head of each, and whether it holds figures.
    rows : iterable of sequence of str
        Cells, as the terminal shows them.
    note : str
        Below it.
    """
    numeric = [is_number for _, is_number in columns]
    cells = [
        [
            Cell(text.strip(), value_of(text) if is_number else None)
            for text, is_number in zip(row, numeric, strict=True)
        ]
        for row in rows
    ]
    return Table(title, [head for head, _ in columns], cells, note=note)
