"""Declarations of charts: frozen values that one drawer makes a picture of, and one the page.

A declaration holds the content: points, names, colours by role, units, remarks. Where a text has
room and how wide a line is belongs to the drawers: `simdp.reports.plots` with Matplotlib,
``charts.js`` on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.sections import Section

Values = Sequence[float | None] | Sequence[float] | Floats  # None and NaN are gaps


class Axis(NamedTuple):
    """An axis of a chart."""

    label: str  # with its unit: ``"Step time [ms]"``
    # ``category``: the series' places are names, or rows named by ``ticks``; ``log2``: ticks at
    # the places
    scale: Literal["value", "log", "log2", "category"] = "value"
    unit: str = ""  # behind values; may be empty
    from_zero: bool = False  # start a horizontal axis at 0, as vertical ones do
    is_near: bool = False  # a vertical axis reaches over its values only, not down to 0
    ticks: Mapping[float, str] | None = None  # texts at places; None: the drawer chooses
    ends: tuple[float, float] | None = None  # None: the drawer chooses
    is_signed: bool = False  # positive values have a plus


class Series(NamedTuple):
    """A line of a chart, a set of points, bars, or an area."""

    name: str  # for the legend, or the end of the line; empty for none
    x: Sequence[str] | Values  # names, or numbers of rows, on a category axis
    y: Values
    # ``points`` are open markers, as for measurements; an ``area`` reaches down to the series that
    # it is stacked on; ``steps`` is an area whose values last until the next; ``ends`` is the
    # interval of a row of bars and ``limit`` a line across a row
    look: Literal["line", "points", "bar", "area", "steps", "ends", "limit"] = "line"
    low: Values = ()  # band around the line, or interval of a point
    high: Values = ()
    color: str = ""  # ``"#RRGGBB"``; empty: the next of `simdp.reports.theme.SERIES`
    hatch: str = ""  # Matplotlib's pattern, which repeats the colour's meaning
    dashed: bool = False  # for theory
    stack: str = ""  # series of one name are stacked
    labels: Sequence[str] = ()  # names beside the points; empty for none
    # of a picture; empty: the next of `simdp.reports.theme.MARKERS`, ``none``: a thin line
    marker: str = ""
    is_filled: bool = False  # points of a simulation
    hatch_color: str = "none"
    members: Sequence[Floats] = ()  # thin lines in the band, each of shape `(num_points, 2)`
    of_members: str = ""  # their name
    crosses: Sequence[tuple[float, float]] = ()  # places that are crossed out


class ReferenceLine(NamedTuple):
    """A line across a chart, such as a capacity."""

    text: str  # written at its end
    value: float  # position on its axis
    axis: Literal["x", "y"] = "y"


class Stretch(NamedTuple):
    """A part of the horizontal axis with a name along the upper edge."""

    names: tuple[str, ...]  # ever shorter ones; the first with room is written
    start: float
    end: float
    is_marked: bool = True  # with a line at its start


class Note(NamedTuple):
    """A remark beside a place."""

    text: str
    x: float
    y: float
    side: Literal["right", "below", "up right", "up left"] = "right"  # of the place
    color: str = theme.INK
    marker: str = ""  # at the place
    room: float = 0.0  # width that it is cut to [points]; 0: whole


@dataclass(frozen=True)
class Chart(Section):
    """Lines, points, bars and areas over one pair of axes: a panel of a picture."""

    kind = "chart"

    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    marks: Sequence[ReferenceLine] = ()  # lines across
    caption: str = ""  # text alternative; a table below has the data
    sideways: bool = False  # horizontal bars: ``x`` goes down, ``y`` to the right
    stretches: Sequence[Stretch] = field(default=(), kw_only=True)
    notes: Sequence[Note] = field(default=(), kw_only=True)
    # a picture names its series at the ends of lines, or in a legend
    names_at: Literal["ends", "above"] = field(default="ends", kw_only=True)


@dataclass(frozen=True)
class Picture:
    """Charts below each other, or beside each other, under one title."""

    title: str
    about: str  # below the title: model, cluster and method; may be empty
    charts: Sequence[Chart]
    widths: tuple[float, ...] = ()  # relative ones of charts beside each other that share rows
