"""Headings: a panel's title, what it is of, and what its colours mean, one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from simdp.reports import theme

ABOUT = "about"
"""What the line below a title is called among the texts of a panel."""


def entitle(ax: Axes, title: str, about: str = "", rows: int = 0) -> None:
    """Write a title, and below it, smaller, what the picture is of.

    Parameters
    ----------
    ax : Axes
        Whose title it is.
    title, about : str
        What is shown; of which model, cluster and point. The latter is cut where it has no room.
    rows : int
        Rows of a legend that stand between these and the panel.
    """
    above = 5.0 + 1.9 * theme.SMALL_SIZE * rows
    ax.set_title(title, pad=above + (1.6 * theme.SMALL_SIZE if about else 3.0))
    if not about:
        return
    ax.annotate(
        theme.fitted(about, theme.SMALL_SIZE, 72 * theme.WIDTH - 80),
        (0.0, 1.0),
        (0.0, above),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        fontsize=theme.SMALL_SIZE,
        color=theme.MUTED,
        in_layout=False,
        gid=ABOUT,
    )


def legend_above(ax: Axes, handles: Sequence[Artist], rows: int = 1) -> None:
    """Say what colours mean, in rows between the title and the panel."""
    if not handles:
        return
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=-(-len(handles) // rows),
        borderaxespad=0.2,
        borderpad=0.2,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )
