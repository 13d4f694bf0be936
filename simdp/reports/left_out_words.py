"""Words for what was left out: a row for each fold, and the means over them."""

from __future__ import annotations

from simdp.reports.validation_words import Column, share
from simdp.results.left_out import Fold, LeftOut, Means

FOLD_COLUMNS = (
    Column("left out", False),
    Column("points"),
    Column("mean error"),
    Column("worst"),
    Column("tau"),
    Column("inside"),
    Column("width"),
    Column("fitted"),
)

TITLES = {"steps": "Step times", "collectives": "Collectives"}


def titles(found: LeftOut) -> list[tuple[str, list[list[str]]]]:
    """Tables under `FOLD_COLUMNS`, with their titles: of steps, and of collectives."""
    tables = []
    for means in found.means():
        rows = [fold_cells(fold) for fold in found.folds if fold.kind == means.kind]
        title = f"{TITLES[means.kind]} without their {found.by}"
        tables.append((title, [*rows, mean_cells(means)]))
    return tables


def fold_cells(fold: Fold) -> list[str]:
    """A row under `FOLD_COLUMNS`."""
    return [
        fold.name,
        str(fold.num_points),
        share(fold.mean_error),
        share(fold.worst_error),
        "-" if fold.tau is None else f"{fold.tau:.2f}",
        share(fold.inside),
        _factor(fold.width),
        share(fold.fit_error),
    ]


def mean_cells(means: Means) -> list[str]:
    """The last row."""
    return [
        f"mean over {means.num_folds} folds" if means.num_folds > 1 else "mean over 1 fold",
        str(means.num_points),
        share(means.mean_error),
        "",
        "",
        share(means.inside),
        _factor(means.width),
        share(means.fit_error),
    ]


def _factor(width: float | None) -> str:
    return "-" if width is None else f"x {width:.2f}"


EXPLAINED = (
    "Every point is predicted by constants that were fitted without what stands on the left. "
    "Errors are absolute; steps that a workload was made to meet, such as that of one device, do "
    "not count. inside: measured times in their 90 % interval. width: the factor from a "
    "prediction to an end of it. fitted: mean error of the same points with the machine's own "
    "constants."
)
