"""How far predictions of collectives are off, by what no fitted table of the machine had.

python -m benchmarks.novelty

Runs ``python -m simdp validate scenarios/validation/nccl-tests``. A spread is the 90 % quantile of
the errors' logarithms over 1.645; `NOVELTY_SPREAD` in `simdp.studies.intervals` is it.
``others'`` is the share of points inside if the spread is that of all other clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from simdp.results.validation import CollectiveComparison
from simdp.studies.intervals import LARGE, MIDDLE, NORMAL_90, collective_novelty_spread
from simdp.studies.validate import validate

TABLES = Path(__file__).parents[1] / "scenarios" / "validation" / "nccl-tests"
SIZES = {"large": (LARGE, 1 << 62), "middle": (MIDDLE, LARGE), "small": (0, MIDDLE)}
HEADS = (
    "new",
    "sizes",
    "tables",
    "clusters",
    "points",
    "mean error",
    "spread",
    "inside",
    "others'",
)

Rows = Sequence[CollectiveComparison]


def error(row: CollectiveComparison) -> float:
    """Logarithm of simulated over measured time."""
    return log(row.simulated / row.measured)


def deviation(rows: Rows) -> float:
    """Spread of some points' errors; 0 without points."""
    return float(np.quantile(np.abs([error(row) for row in rows]), 0.9) / NORMAL_90) if rows else 0


def inside(row: CollectiveComparison, spread: float) -> bool:
    """Whether a point would be in its interval if what is new had another spread."""
    end = row.high if row.measured > row.simulated else row.low
    known = (
        log(end / row.simulated) ** 2
        - (NORMAL_90 * collective_novelty_spread(row.new, row.nbytes)) ** 2
    )
    return error(row) ** 2 <= max(known, 0.0) + (NORMAL_90 * spread) ** 2


def lines(rows: Rows) -> Iterator[tuple[str, ...]]:
    """A line for each novelty and class of sizes."""
    for new in sorted({row.new for row in rows}):
        for name, (least, most) in SIZES.items():
            some = [row for row in rows if row.new == new and least <= row.nbytes < most]
            if not some:
                continue
            clusters = {row.cluster for row in some}
            held = [
                inside(row, deviation([one for one in some if one.cluster != row.cluster]))
                for row in some
            ]
            yield (
                " and ".join(new) or "nothing",
                name,
                str(len({(row.scenario, row.table) for row in some})),
                str(len(clusters)),
                str(len(some)),
                f"{np.mean(np.abs([error(row) for row in some])):.1%}",
                f"{deviation(some):.3f}",
                f"{np.mean([row.low <= row.measured <= row.high for row in some]):.0%}",
                f"{np.mean(held):.0%}" if len(clusters) > 1 and new else "-",
            )


def main() -> int:
    """Print the table."""
    found = validate([TABLES]).rows
    table = Table(*HEADS)
    for line in lines([row for row in found if row.role == "predicted"]):
        table.add_row(*line)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
