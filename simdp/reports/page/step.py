"""What steps are made of, as bars that lie, one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simdp.reports import theme
from simdp.reports.page.sections import Axis, Chart, Series
from simdp.reports.plots.step_parts import PARTS


def steps(
    title: str,
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    *,
    axis: str = "",
    said: str = "",
    note: str = "",
) -> Chart:
    """Stack the parts of each step.

    Parameters
    ----------
    title, axis, said, note : str
        Of the chart, and of the axis with the names.
    names : sequence of str
        Of the steps.
    parts : sequence of mapping of str to float
        Of each step, by the keys of `PARTS` [s]; what one lacks is nothing.
    """
    longest = max(sum(one.get(key, 0.0) for key in PARTS) for one in parts)
    unit, per_second = theme.time_unit(longest)
    series = [
        Series(
            name,
            list(names),
            [one.get(key, 0.0) * per_second for one in parts],
            "bar",
            color=fill.color,
            hatch=fill.hatch,
            stack="step",
        )
        for key, (name, fill) in PARTS.items()
        if any(one.get(key) for one in parts)
    ]
    return Chart(
        title,
        Axis(axis, "category"),
        Axis(f"Time [{unit}], mean over ranks", unit=unit),
        series,
        said=said,
        sideways=True,
        note=note,
    )
