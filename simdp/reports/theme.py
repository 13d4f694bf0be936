"""Theme: colours, fills, units of axes, and footers; the drawers are elsewhere."""

from __future__ import annotations

from typing import NamedTuple

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
        names = {measurement.cluster for measurement in (*study.points, *study.rows)}
        names |= {measurement.cluster for measurement in study.memory}
        where = f"cluster {min(names)}" if len(names) == 1 else f"{len(names)} clusters"
        times = f"{measured} measured times" if measured or not study.memory else ""
        peaks = f"{len(study.memory)} peaks of memory" if study.memory else ""
        return " · ".join(filter(None, [where, times, peaks, f"simdp {study.version}"]))
    name, seed = study.scenario.get("name", "?"), study.scenario.get("seed", 0)
    return f"scenario {name} · seed {seed} · simdp {study.version}"


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
