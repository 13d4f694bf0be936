"""How far predictions of steps are off, by what no fitted step of the machine had.

python -m benchmarks.new_steps

Runs ``python -m simdp validate`` on the steps of ``scenarios/validation``. A spread is the least
that holds nine in ten of the measured steps, of its clusters alike and of those with one thing new;
`simdp.studies.intervals.SPREAD` has it. ``others'`` is the share inside if the spread is
that of all other clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from simdp.results.validation import StepComparison
from simdp.studies.intervals import LEAST, NORMAL_90, step_novelty_spread
from simdp.studies.validate import validate

FOLDER = Path(__file__).parents[1] / "scenarios" / "validation"
HEADS = ("new", "clusters", "points", "mean error", "exposed", "spread", "inside", "others'")
WIDEST = 2.0
"""Largest spread that is looked at."""


class Step(NamedTuple):
    """A predicted step; times in seconds, ``exposed`` as `step_novelty_spread` has it."""

    scenario: str
    cluster: str
    measured: float
    simulated: float
    low: float
    high: float
    exposed: float
    new: tuple[str, ...]


def step_of(point: StepComparison) -> Step:
    """What is looked at of a point."""
    exposed = point.exposed_simulated / point.simulated
    times = point.measured, point.simulated, point.low, point.high
    return Step(point.scenario, point.cluster, *times, exposed, point.new)


def error(step: Step) -> float:
    """Logarithm of simulated over measured time."""
    return log(step.simulated / step.measured)


def is_inside(step: Step, spread: float) -> bool:
    """Whether a step would be in its interval if what is new had another spread."""
    end = step.high if step.measured > step.simulated else step.low
    if end <= 0:
        return True
    now = (NORMAL_90 * step_novelty_spread(step.new, step.exposed)) ** 2
    known = max(log(end / step.simulated) ** 2 - now, 0.0)
    then = (NORMAL_90 * max(spread * step.exposed, LEAST)) ** 2
    return error(step) ** 2 <= (known + then) * (1 + 1e-9)


def share_inside(steps: Sequence[Step], spread: float) -> float:
    """Share of steps inside, the mean over clusters."""
    clusters = {step.cluster for step in steps}
    each = [[is_inside(s, spread) for s in steps if s.cluster == name] for name in clusters]
    return float(np.mean([np.mean(one) for one in each]))


def spread(steps: Sequence[Step]) -> float:
    """The least spread that holds nine in ten of some steps; the widest where none does."""
    low, high = 0.0, WIDEST
    if not steps or share_inside(steps, high) < 0.9:
        return inf
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if share_inside(steps, middle) >= 0.9 else (middle, high)
    return high


def lines(steps: Sequence[Step]) -> Iterator[tuple[str, ...]]:
    """A line for each novelty, then one for each cluster of it."""
    for new in sorted({step.new for step in steps}):
        some = [step for step in steps if step.new == new]
        clusters = sorted({step.cluster for step in some})
        for names in (clusters, *([name] for name in clusters if len(clusters) > 1)):
            part = [step for step in some if step.cluster in names]
            others = [step for step in some if step.cluster not in names]
            yield (
                (" and ".join(new) or "nothing") if names is clusters else f"- {names[0]}",
                str(len(names)),
                str(len(part)),
                f"{np.mean(np.abs([error(step) for step in part])):.1%}",
                f"{np.mean([step.exposed for step in part]):.0%}",
                f"{spread(part):.3f}",
                f"{np.mean([step.low <= step.measured <= step.high for step in part]):.0%}",
                f"{share_inside(part, spread(others)):.0%}" if others else "-",
            )


def main() -> int:
    """Print the table."""
    folders = [path for path in sorted(FOLDER.iterdir()) if path.name != "nccl-tests"]
    points = [one for one in validate(folders).points if one.role == "predicted"]
    table = Table(*HEADS)
    for line in lines([step_of(one) for one in points if one.world_size > 1]):
        table.add_row(*line)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
