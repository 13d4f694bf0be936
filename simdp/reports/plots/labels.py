"""The base of plots, headings and labels."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from matplotlib import ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from simdp.keys import short_key, written
from simdp.reports import theme

D = TypeVar("D", bound=theme.Drawn)


class Plot(ABC, Generic[D]):
    """One kind of picture."""

    kind: ClassVar[str]  # in the table, and the file's name
    reads: ClassVar[type]  # type of the studies that it draws
    needs: ClassVar[str]  # required data, for messages
    num_axes: ClassVar[int] = 1  # panels, one above the other
    # relative widths of panels side by side that share their rows; else empty
    widths: ClassVar[tuple[float, ...]] = ()

    @abstractmethod
    def fits(self, study: D) -> bool:
        """Return whether the study has the plot's data."""

    @abstractmethod
    def draw(self, study: D, *axes: Axes) -> None:
        """Draw a study that fits on ``num_axes`` empty panels, from the top.

        Inside `simdp.reports.theme.style`; touches nothing but the panels.
        """

    def num_rows(self, study: D) -> int:
        """Count the rows of bars, which decide the height; 0 for curves."""
        return 0


ABOUT = "about"  # id of the line below a title
HALO = [withStroke(linewidth=2.5, foreground="white")]  # keeps texts readable on lines
PALE: dict[str, Any] = {"fontsize": theme.SMALL_SIZE, "color": theme.MUTED}  # look of remarks


def note(ax: Axes, text: str, at: tuple[Any, Any], by: tuple[float, float], **look: Any) -> None:
    """Write a small text beside a place, moved by some points."""
    given = {"textcoords": "offset points", "fontsize": theme.SMALL_SIZE, **look}
    ax.annotate(text, at, by, **given)


def ticks(
    axis: Axis, places: ticker.Locator | Sequence[float], write: Callable[[float], str]
) -> None:
    """Set the major ticks of an axis and their labels; there are no minor ones."""
    axis.set_major_locator(
        places if isinstance(places, ticker.Locator) else ticker.FixedLocator(places)
    )
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_locator(ticker.NullLocator())


def log2_axis(
    ax: Axes,
    sizes: Sequence[float],
    places: Sequence[float],
    write: Callable[[float], str] = "{:.0f}".format,
    label: str = "World size [GPUs]",
    margin: float = 0.05,
) -> None:
    """Make a horizontal log2 axis over ascending sizes, with a margin as a part of the axis."""
    ax.set_xscale("log", base=2)
    room = (sizes[-1] / sizes[0]) ** margin
    ax.set_xlim(sizes[0] / room, sizes[-1] * room)
    ticks(ax.xaxis, places, write)
    ax.set_xlabel(label)


def log_places(span: float) -> ticker.Locator:
    """Choose the ticks of a log axis by the ratio of its ends; above 1,000 decades only."""
    subs = (1,) if span > 1e3 else (1, 2, 5)
    return ticker.MaxNLocator(5) if span < 5 else ticker.LogLocator(10, subs=subs)


def patch(name: str, fill: theme.FillStyle) -> Patch:
    """Make the legend's entry of a fill."""
    hatch = fill.hatch * 2
    return Patch(fc=fill.color, ec=fill.hatch_color, hatch=hatch, linewidth=0, label=name)


def differ(values: Sequence[float], least: float, unknown: bool) -> bool:
    """Return whether finite values differ by a part of the largest; ``unknown`` if one is not."""
    array = np.array(values)
    if not np.isfinite(array).all():
        return unknown
    return bool(np.ptp(array) > least * np.abs(array).max())


def entitle(ax: Axes, title: str, about: str = "", rows: int = 0) -> None:
    """Write a title, and below it, smaller, the model, cluster and point.

    ``about`` is cut to the panel's width; ``rows`` of a legend are between these and the panel.
    """
    above = 5.0 + 1.9 * theme.SMALL_SIZE * rows
    ax.set_title(title, pad=above + (1.6 * theme.SMALL_SIZE if about else 3.0))
    if not about:
        return
    text = theme.fitted(about, theme.SMALL_SIZE, 72 * theme.WIDTH - 80)
    look = {"xycoords": "axes fraction", "va": "bottom", "color": theme.MUTED, "gid": ABOUT}
    note(ax, text, (0.0, 1.0), (0.0, above), in_layout=False, **look)


def legend_above(ax: Axes, handles: Sequence[Artist]) -> None:
    """Draw a legend in a row between the title and the panel."""
    if not handles:
        return
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(handles),
        borderaxespad=0.2,
        borderpad=0.2,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )


MAX_NAME = 40  # letters of the longest name; of a longer one the keys are cut, then the rest
MIN_KEY = 6  # least letters of a key


# axis labels of keys whose own name would be unclear or lacks its unit
KEY_NAMES = {
    "alpha": "Latency",
    "async_launch": "Asynchronous launch",
    "bucket_cap": "Bucket cap",
    "devices_per_node": "Node size [GPUs]",
    "global_batch": "Global batch [samples]",
    "grad_accum": "Gradient accumulation [micro-steps]",
    "links_per_node": "NICs per node",
    "local_steps": "Local steps [steps between averages]",
    "lr": "Learning rate",
    "microbatch": "Micro-batch [samples per GPU]",
    "world_size": "World size [GPUs]",
}


def key_label(key: str, scenario: Mapping[str, Any]) -> str:
    """Write the axis label of a swept key: ``"World size [GPUs]"``, ``"Slowdown of rank 3 [x]"``.

    ``key`` is dotted; an entry of a list, such as a straggler, is named by its kind or rank.
    """
    *path, last = key.removesuffix(".kind").split(".")
    if last.isdecimal():
        return f"{_in_words(path[-1] if path else last)} {last}"
    if not (path and path[-1].isdecimal()):
        return KEY_NAMES.get(last, _in_words(last))
    found: Any = scenario
    for part in path:
        place = int(part) if part.isdecimal() and isinstance(found, list) else part
        try:
            found = found[place]
        except (KeyError, IndexError, TypeError):
            return f"{_in_words(last)} of {path[-2]} {path[-1]}"
    kind = found.get("kind", "") if isinstance(found, Mapping) else str(found)
    rank = found.get("rank") if isinstance(found, Mapping) else None
    whose = f"rank {rank}" if rank is not None else str(kind).replace("_", " ")
    if last == "factor":
        return f"Slowdown of {whose} [x]"
    return f"{_in_words(last)} of {whose or f'{path[-2]} {path[-1]}'}"


def _in_words(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def wrapped(text: str, limit: int = MAX_NAME) -> str:
    """Wrap a long name, behind commas if possible."""
    lines = [""]
    for piece in text.replace(", ", ",\0").split("\0"):
        if lines[-1] and len(f"{lines[-1]} {piece}") > limit:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return "\n".join(part for line in lines for part in textwrap.wrap(line, limit) or [line])


class End(NamedTuple):
    """End and look of a line."""

    text: str  # the line's name
    x: float  # in data
    y: float  # in data
    color: str
    marker: str = ""  # may be empty
    dashed: bool = False  # for theory
    is_open: bool = False  # open marker, as for measurements


def evenly(count: int, limit: int) -> list[int]:
    """Choose at most ``limit`` of ``count`` positions evenly, with the first and the last."""
    if count <= limit:
        return list(range(count))
    if limit < 2:
        return list(range(limit))
    return [i * (count - 1) // (limit - 1) for i in range(limit)]


class Swept(Protocol):
    """A point of a sweep."""

    @property
    def set(self) -> dict[str, Any]:
        """Settings by key."""


def point_names(points: Sequence[Swept], leave_out: str = "", limit: int = MAX_NAME) -> list[str]:
    """Name points by the keys that differ: ``"all_reduce: ring"``.

    ``leave_out`` is a key that an axis shows. Names have at most ``limit`` letters.
    """
    keys = [
        key
        for key in (points[0].set if points else {})
        if key != leave_out and len({repr(point.set.get(key)) for point in points}) > 1
    ]
    return [
        _name([(short_key(key), written(point.set[key])) for key in keys], limit)
        for point in points
    ]


def _name(pairs: list[tuple[str, str]], limit: int) -> str:
    """Join keys and values, and cut the longest keys first, since values distinguish points.

    A single key is dropped if its value would be cut otherwise.
    """
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    while True:
        text = ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
        longest = max(range(len(keys)), key=lambda i: len(keys[i]), default=0)
        if len(text) <= limit or len(keys[longest]) <= MIN_KEY:
            return cut(text if len(text) <= limit or len(values) > 1 else values[0], limit)
        keys[longest] = keys[longest].rstrip("…")[:-1] + "…"


def cut(text: str, limit: int = MAX_NAME) -> str:
    """Cut a name to a number of letters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Move labels apart as little as possible, at least ``gap`` between neighbours.

    Positions are fractions of the panel's height; equal ones keep their order, the first on top.
    """
    order = sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))
    # Runs of touching labels, each around the mean of its wishes; touching runs join.
    runs: list[list[int]] = []
    for i in order:
        runs.append([i])
        while len(runs) > 1:
            bottom = _top(runs[-2], wanted, gap) - gap * (len(runs[-2]) - 1)
            if bottom - gap >= _top(runs[-1], wanted, gap):
                break
            runs[-2:] = [runs[-2] + runs[-1]]
    placed = [0.0] * len(wanted)
    for run in runs:
        for place, i in enumerate(run):
            placed[i] = _top(run, wanted, gap) - place * gap
    return placed


def _top(run: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return sum(wanted[i] for i in run) / len(run) + gap * (len(run) - 1) / 2


def label_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Name lines right of the panel, beside their ends; call it last."""
    ax.set_xlim(ax.get_xlim())
    ax.set_ylim(ax.get_ylim())  # from here on nothing may move the data
    to_fraction = ax.transScale + ax.transLimits
    starts = [to_fraction.transform((end.x, end.y)) for end in ends]
    gap = 1.35 * theme.SMALL_SIZE * ax.get_figure(root=True).dpi / 72 / ax.bbox.height  # type: ignore[union-attr]
    heights = spread([float(start[1]) for start in starts], gap)
    for end, start, height in zip(ends, starts, heights, strict=True):
        look: dict[str, Any] = {"color": end.color, "transform": ax.transAxes, "clip_on": False}
        x, y = [start[0], 1.012, 1.03], [start[1], height, height]
        style = "--" if end.dashed else "-"
        ax.add_artist(Line2D(x, y, lw=theme.THIN_WIDTH, ls=style, **look))
        if end.marker:
            look |= {"ms": theme.MARKER_SIZE, "mfc": "none" if end.is_open else end.color}
            ax.add_artist(Line2D([1.03], [height], ls="", marker=end.marker, **look))
        look = {"transform": ax.transAxes, "va": "center_baseline", "fontsize": theme.SMALL_SIZE}
        ax.text(1.042, height, end.text, **look)
