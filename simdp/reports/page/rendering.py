"""HTML of a page of sections: one file without external parts.

Text is escaped by Jinja; data go into ``<script type="application/json">`` with every letter
escaped that could end it. A policy in the file's head lets a browser run the scripts written here,
by their hashes, and fetch nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import BinaryIO

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from simdp.files import read_text
from simdp.reports import theme
from simdp.reports.charts.chart import Axis, Chart, Series, Values
from simdp.reports.figures import TableCell
from simdp.reports.sections import Ledger, LinkGraph, Page, Section, Timeline

HERE = Path(__file__).parent
ECHARTS = HERE / "echarts-6.1.0" / "echarts.min.js"
# the page's own scripts, in order of execution
SCRIPTS = ("looks.js", "tables.js", "charts.js", "graph.js", "ledger.js", "timeline.js", "page.js")


def render(page: Page, stream: BinaryIO) -> None:
    """Write a page as HTML; equal pages give equal bytes."""
    library, own = _scripts()
    text = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            ids=_ids(page.sections),
            style=Markup(read_text(HERE / "page.css")),
            scripts=[Markup(script) for script in (library, own)],
            hashes=[
                f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"
                for script in (library, own)
            ],
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
    made.filters["cell"] = lambda text: text if isinstance(text, TableCell) else TableCell(text)
    return made


@cache
def _scripts() -> tuple[str, str]:
    """Read the library, and the page's own scripts as one text, neither to be escaped."""
    library = read_text(ECHARTS, "it comes with simdp")
    own = "\n".join(read_text(HERE / name) for name in SCRIPTS)
    return f"\n{library}\n", f"\n{own}\n"


def _ids(sections: Sequence[Section]) -> list[str]:
    """Make a unique anchor for each section."""
    anchors: list[str] = []
    for section in sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or section.kind
        count = sum(other == name or other.startswith(f"{name}--") for other in anchors)
        anchors.append(f"{name}--{count + 1}" if count else name)
    return anchors


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Return whether a column holds figures."""
    cells = [row[column] for row in rows]
    return any(isinstance(cell, TableCell) and cell.value is not None for cell in cells)


def data_of(section: Section) -> Mapping[str, object] | None:
    """Make the plain data of a section for the scripts; None without scripts."""
    if isinstance(section, Chart):
        return {
            "x": _axis(section.x),
            "y": _axis(section.y),
            "series": [_series(series) for series in section.series if len(series.x)],
            "marks": [mark._asdict() for mark in section.marks],
            "sideways": section.sideways,
        }
    if isinstance(section, LinkGraph):
        return {"nodes": section.nodes, "links": section.links}
    return section.data if isinstance(section, Ledger | Timeline) else None


def _axis(axis: Axis) -> dict[str, object]:
    ticks = None if axis.ticks is None else list(axis.ticks.items())
    fields = ("label", "scale", "unit", "from_zero", "is_near")
    return {name: getattr(axis, name) for name in fields} | {"ticks": ticks}


def _series(series: Series) -> dict[str, object]:
    """Write what the page draws of a series; what is not finite is a gap."""
    fields = ("name", "look", "color", "hatch", "dashed", "stack", "labels")
    places = [x if isinstance(x, str) else float(x or 0.0) for x in series.x]
    low, high = _known(series.low), _known(series.high)
    ends = {"low": low, "high": high} if any(end is not None for end in low) else {}
    columns = {"x": places, "y": _known(series.y), "low": [], "high": [], **ends}
    return {name: getattr(series, name) for name in fields} | columns


def _known(values: Values) -> list[float | None]:
    return [float(v) if v is not None and isfinite(v) else None for v in values]


def looks() -> dict[str, object]:
    """Return the colours and patterns of `simdp.reports.theme`."""
    return {
        "series": theme.SERIES,
        "fills": {name: fill._asdict() for name, fill in theme.FILLS.items()},
    }
