"""Theme: sizes, fonts, colours, footer, and saving of figures.

A figure is made, drawn and saved inside ``with style():``, which leaves no trace in Matplotlib's
global settings. Pyplot is not used. The plots are in `simdp.reports.plots`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from simdp.results.calibration import CalibrationStudy, StepCalibration
from simdp.results.collective import CollectiveStudy
from simdp.results.comparison import Comparison
from simdp.results.job import JobStudy
from simdp.results.result import Study
from simdp.results.validation import Validation

Calibration = CalibrationStudy | StepCalibration
Drawn = Study | CollectiveStudy | Validation | Calibration | Comparison | JobStudy  # with plots
COMPUTE, COMM, UPDATE = "#0072B2", "#E69F00", "#009E73"
COPY, WAIT, STRAGGLER = "#F0E442", "#999999", "#D55E00"
INPUT, HOST = "#56B4E9", "#CC79A7"
INK, MUTED, FAINT = "#222222", "#6B6B6B", "#E4E4E4"
# Colours of lines, none of which means an activity: the palette's, then of P. Tol, "Colour
# schemes", 2021, and a brown
SERIES = ("#000000", "#CC79A7", "#56B4E9", "#332288", "#999933", "#882255", "#44AA99", "#8C564B")
# filled, since open circles are measurements
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "P", "h")


def look(number: int) -> tuple[str, str]:
    """Return colour and marker of a series; no two of 72 series share both."""
    return SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]


class FillStyle(NamedTuple):
    """Look of an activity's bars; the hatch repeats the colour's meaning."""

    color: str
    hatch: str
    hatch_color: str
    text_color: str  # of a label inside the bar


# look of the activities of `simdp.results.trace` in a timeline
FILLS = {
    "input": FillStyle("#FFFFFF", "xxxx", INPUT, INK),
    "host": FillStyle(HOST, "----", "#F3D9E8", INK),
    "compute": FillStyle(COMPUTE, "////", "#4C9CCB", "white"),
    "forward": FillStyle(COMPUTE, "", "none", "white"),
    "backward": FillStyle(COMPUTE, "\\\\\\\\", "#4C9CCB", "white"),
    "update": FillStyle(UPDATE, "||||", "#7FCEB9", "white"),
    "copy": FillStyle(COPY, "....", INK, INK),
    "compress": FillStyle(COPY, "++++", INK, INK),
    "comm": FillStyle(COMM, "", "none", INK),
    "wait": FillStyle("#F2F2F2", "/////", WAIT, INK),
}

# look of the parts of `simdp.results.memory`
PART_FILLS = {
    "parameters": FillStyle(COMPUTE, "", "none", "white"),
    "optimizer_state": FillStyle(UPDATE, "||||", "#7FCEB9", "white"),
    "gradients": FillStyle(INPUT, "\\\\\\\\", "#A9D8F3", INK),
    "buckets": FillStyle(COMM, "", "none", INK),
    "gathered": FillStyle("#F6D28A", "----", COMM, INK),
    "activations": FillStyle(HOST, "", "none", INK),
    "outputs": FillStyle("#F3D9E8", "xxxx", HOST, INK),
    "inputs": FillStyle(COPY, "....", INK, INK),
    "buffers": FillStyle(WAIT, "", "none", INK),
    "temporary": FillStyle("#F2F2F2", "/////", WAIT, INK),
}

WIDTH, PANEL_HEIGHT, ROW_HEIGHT, MARGIN_HEIGHT, DPI = 9.0, 3.2, 0.42, 1.6, 150
MIN_ROWS = 3
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE, TINY_SIZE = 12.0, 9.0, 8.0, 6.5
LINE_WIDTH, THIN_WIDTH, MARKER_SIZE = 1.6, 0.6, 5.5

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with Matplotlib, so that every machine has it
    "font.size": TEXT_SIZE,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL_SIZE,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": SMALL_SIZE,
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": MARKER_SIZE,
    "legend.fontsize": SMALL_SIZE,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.12,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in simdp's style, and restore Matplotlib's settings."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def new_figure(
    num_axes: int, num_rows: int, widths: tuple[float, ...] = ()
) -> tuple[Figure, list[Axes]]:
    """Make a figure inside `style`, and its empty panels from the top or the left.

    Panels share their x axis; with relative ``widths`` they are side by side and share their y
    axis. ``num_rows`` counts the rows of bars of a panel; 0 for curves.
    """
    body = max(num_rows, MIN_ROWS) * ROW_HEIGHT if num_rows else num_axes * PANEL_HEIGHT
    figure = Figure((WIDTH, MARGIN_HEIGHT + body), DPI, layout="constrained")
    if widths:
        return figure, list(figure.subplots(1, num_axes, sharey=True, width_ratios=widths))
    return figure, list(figure.subplots(num_axes, 1, sharex=True, squeeze=False)[:, 0])


def line_style(number: int, covered: int) -> dict[str, Any]:
    """Choose width, markers and layer of line ``number`` as arguments of Matplotlib's ``plot``.

    A line that ``covered`` later ones coincide with is wider than these, and so still visible.
    """
    return {
        "linewidth": LINE_WIDTH + 2.2 * covered,
        "markersize": MARKER_SIZE + 3 * covered,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
        "zorder": 3 + 0.01 * number,
    }


def footer(study: Drawn) -> str:
    """Write a plot's origin: ``"scenario 8gpu_ring · seed 0 · simdp 0.1.0"``."""
    if isinstance(study, CollectiveStudy):
        return f"cluster {study.cluster} · simdp {study.version}"
    if isinstance(study, CalibrationStudy):
        count = len({point.source for point in study.points})
        logs = f"{count} file{'s' * (count > 1)} of nccl-tests"
        return f"machine {study.name} · {logs} · simdp {study.version}"
    if isinstance(study, StepCalibration):
        return f"machine {study.name} · {len(study.points)} steps · simdp {study.version}"
    if isinstance(study, Validation):
        measured = len(study.points) + len(study.rows)
        names = {one.cluster for one in (*study.points, *study.rows)}
        names |= {one.cluster for one in study.memory}
        where = f"cluster {min(names)}" if len(names) == 1 else f"{len(names)} clusters"
        times = f"{measured} measured times" if measured or not study.memory else ""
        peaks = f"{len(study.memory)} peaks of memory" if study.memory else ""
        return " · ".join(filter(None, [where, times, peaks, f"simdp {study.version}"]))
    name, seed = study.scenario.get("name", "?"), study.scenario.get("seed", 0)
    return f"scenario {name} · seed {seed} · simdp {study.version}"


def add_footer(figure: Figure, text: str) -> None:
    """Write a line at the bottom left of a figure."""
    # As the figure's x label, since the layout leaves room for it.
    figure.supxlabel(text, x=0.012, ha="left", fontsize=SMALL_SIZE, color=MUTED)


def save(figure: Figure, stream: BinaryIO) -> None:
    """Write a figure as PNG inside `style`; equal figures give equal files."""
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": "simdp"})


@cache
def text_width(text: str, size: float) -> float:
    """Measure a line of text in the sans-serif font [points]."""
    font = FontProperties(family=_SETTINGS["font.sans-serif"], size=size)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def fitted(text: str, size: float, room: float) -> str:
    """Cut a line of text to a width [points]."""
    if text_width(text, size) <= room:
        return text
    kept, too_many = 0, len(text)
    while too_many - kept > 1:
        middle = (kept + too_many) // 2
        if text_width(f"{text[:middle]}…", size) <= room:
            kept = middle
        else:
            too_many = middle
    return text[:kept].rstrip(" ·,") + "…"


def time_unit(longest: float) -> tuple[str, float]:
    """Choose the unit of a time axis by its longest time [s], and how many make a second."""
    for unit, per_second in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if longest * per_second >= 1:
            return unit, per_second
    return "ns", 1e9


def nbytes_unit(largest: float) -> tuple[str, float]:
    """Choose the unit of a size axis by its largest size [bytes]; return it and its bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= scale:
            return unit, scale
    return "B", 1.0


def short_number(value: float, _position: object = None) -> str:
    """Write a number for an axis: 1500000 as ``"1.5 M"``."""
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {letter}"
    return f"{value:.4g}"
