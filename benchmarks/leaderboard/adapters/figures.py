"""What several entrants need: the time of one device."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.leaderboard.points import Point


def device_time(point: Point, shown: Sequence[Point]) -> float | None:
    """Time that one device takes for what it does in a step [s].

    Where nobody has measured it, the FLOPs over what such devices reach of their peak in the steps
    that are shown, the median, of the same cluster first; None where none is.
    """
    micro_steps = point["grad_accum"]
    if point["micro_step_s"] is not None:
        return float(point["micro_step_s"]) * micro_steps
    steps = [one for one in shown if one["kind"] == "step" and one["device"] == point["device"]]
    own = [one for one in steps if one["cluster"] == point["cluster"]]
    alike = [ideal / one["measured_s"] for one in own or steps if (ideal := _ideal(one))]
    work = _ideal(point)
    return None if work is None or not alike else float(work / median(alike))


def _ideal(point: Point) -> float | None:
    flops, peak = point["micro_step_flops"], point["peak_flops"]
    return float(flops * point["grad_accum"] / peak) if flops and peak else None
