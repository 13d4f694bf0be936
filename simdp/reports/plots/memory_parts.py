"""What the plots of memory have in common: devices, their capacity, and how parts are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.reports import theme
from simdp.reports.plots.headings import legend_above
from simdp.results.memory import PARTS
from simdp.results.result import Result

LEAST_SHARE = 0.005
"""Part of the highest total below which a part is not told apart from the rest."""

FAR = 2.5
"""A capacity that is so many times the peak is said, not drawn: it would flatten all the rest."""


def device_ranks(result: Result, rank: int) -> list[int]:
    """List the ranks that share a rank's device, itself included."""
    k = int(result.scenario["cluster"].get("ranks_per_device", 1))
    first = rank // k * k
    return list(range(first, min(first + k, result.world_size)))


def capacity(result: Result, rank: int) -> float:
    """Memory of a rank's device [bytes]."""
    return Cluster.model_validate(result.scenario["cluster"]).devices()[rank].memory


def mark_capacity(ax: Axes, height: float, right: float, text: str) -> None:
    """Draw what a device holds as a dashed line, with its name above the right end."""
    ax.axhline(height, color=theme.STRAGGLER, linestyle="--", linewidth=theme.LINE_WIDTH)
    ax.annotate(
        f"capacity {text}",
        (right, height),
        (-4, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=theme.SMALL_SIZE,
        color=theme.STRAGGLER,
    )


def shown_parts(kept: Floats) -> list[int]:
    """Choose the parts that can be seen; the others are shown together.

    Parameters
    ----------
    kept : ndarray, shape `(..., len(PARTS))`
        What is there [bytes].

    Returns
    -------
    list of int
        Places in `PARTS`.
    """
    flat = kept.reshape(-1, len(PARTS))
    largest, highest = flat.max(axis=0), flat.sum(axis=1).max()
    return [int(part) for part in np.flatnonzero(largest > LEAST_SHARE * highest)]


def rest(kept: Floats, parts: Sequence[int]) -> Floats:
    """Sum the parts that are not shown, shaped as ``kept`` without its last axis."""
    others = [part for part in range(len(PARTS)) if part not in parts]
    found: Floats = kept[..., others].sum(axis=-1)
    return found


def name_parts(ax: Axes, parts: Sequence[int]) -> None:
    """Say above a panel what the colours mean."""
    fills = [(PARTS[part], theme.PART_FILLS[PARTS[part]]) for part in parts]
    handles = [
        Patch(
            facecolor=fill.color,
            edgecolor=fill.hatch_color,
            hatch=fill.hatch * 2,
            linewidth=0,
            label=name.replace("_", " "),
        )
        for name, fill in fills
    ]
    legend_above(ax, handles)
