"""The section of memory over time: the fullest device, in the step in which it is fullest."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.reports import theme
from simdp.reports.figures import nbytes
from simdp.reports.page.sections import Axis, Chart, Mark, Series
from simdp.reports.plots.memory import doing_at, fullest_step
from simdp.reports.plots.memory_parts import FAR, capacity, rest, shown_parts
from simdp.results.memory import PARTS
from simdp.results.result import Result

MOST_INSTANTS = 1500
"""Instants of the areas; of more the fullest of neighbours stay."""


def memory(result: Result) -> list[Chart]:
    """Make the section; none where a trace does not tell when memory is taken."""
    if result.trace is None or not any(held.step >= 0 for held in result.trace.memory):
        return []
    found = fullest_step(result)
    total, room = found.kept.sum(axis=1), capacity(result, found.ranks[0])
    is_near = bool(room <= FAR * total.max())
    time_unit, per_second = theme.time_unit(found.end - found.begin)
    unit, scale = theme.nbytes_unit(max(total.max(), room if is_near else 0.0))
    kept = _thinned(found.at, total)
    times = ((found.at[kept] - found.begin) * per_second).tolist()
    parts = shown_parts(found.kept)
    areas = [(PARTS[part], found.kept[kept, part]) for part in parts]
    areas.append(("the rest", rest(found.kept, parts)[kept]))
    series = [_area(name, times, heights / scale) for name, heights in areas if heights.any()]
    ranks = f"rank {found.ranks[0]}" + f" to {found.ranks[-1]}" * (len(found.ranks) > 1)
    peak = f"{nbytes(total[found.peak])}{doing_at(result, found)}"
    return [
        Chart(
            "Memory over a step",
            Axis(f"Time since the start of step {found.step + 1} [{time_unit}]", unit=time_unit),
            Axis(f"Device memory [{unit}]", unit=unit),
            series,
            [Mark(f"capacity {nbytes(room)}", room / scale)] * is_near,
            said=f"What the fullest device, of {ranks}, keeps: at most {peak}, of {nbytes(room)}.",
        )
    ]


def _area(name: str, times: list[float], heights: Floats) -> Series:
    fill = theme.PART_FILLS.get(name, theme.Fill(theme.WAIT, "", "none", theme.INK))
    said = name.replace("_", " ")
    return Series(
        said, times, heights.tolist(), "steps", color=fill.color, hatch=fill.hatch, stack="memory"
    )


def _thinned(at: Floats, total: Floats) -> Ints:
    """Places of the fullest of all that happens at one instant, or close together; the ends too."""
    span = at[-1] - at[0] or 1.0
    bins = np.floor((at - at[0]) / span * MOST_INSTANTS)
    same = bins if len(np.unique(at)) > MOST_INSTANTS else at
    order = np.lexsort((total, same))
    last = np.append(same[order][1:] != same[order][:-1], True)
    found: Ints = np.sort(order[last])
    return found
