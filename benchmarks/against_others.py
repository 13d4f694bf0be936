"""How much nearer than rules of thumb simulated times come to those of real machines.

python -m benchmarks.against_others

The same measured points of ``scenarios/validation``, predicted by simdp and by others:

linear
    The throughput of the fewest ranks, grown linearly; for steps.
ring
    Simulated compute, and behind it the ring formula at the links' bandwidth; for a collective the
    formula alone, with the links' latency.
regression
    A straight line through logarithms. Of step times by ranks, for each series (points of a
    scenario that differ in their ranks alone, and the one rank that did their work): through its
    calibration points or, if these have fewer than two numbers of ranks, through those and all
    that was measured on fewer ranks, which simdp is not shown. Of a collective's times by sizes
    from 1 MiB: through the calibration sizes of its table, else of the cluster's tables of that
    collective, else of all the cluster's. Its interval is the 90 % prediction interval of least
    squares, with the variance of all lines of the cluster.

Only predicted points count, and of these the ones that every rule has an answer for. Order is
Kendall's tau over pairs that differ by more than the noise; of collectives, pairs of one size.
A star marks a rule whose mean error is below simdp's by more than the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log, nan, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.table import machine
from simdp.results.validation import (
    CollectiveComparison,
    StepComparison,
    TimeComparison,
    Validation,
    kendall_tau,
)
from simdp.studies.validate import validate

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "validation"
LEAST = 1 << 20
"""Size from which collectives count [bytes]."""

INSIDE = 0.9
"""Share of all measured times that an interval is to hold."""

Samples = Sequence[tuple[float, float]]
Answers = dict[str, list[TimeComparison]]
"""By rule: the points, with what it predicts in the place of the simulated time."""


class Line(NamedTuple):
    """A straight line by least squares, and what is left: sum of squares, degrees of freedom."""

    slope: float
    middle: tuple[float, float]
    width: float
    count: int
    left: float
    freedom: int

    def at(self, x: float) -> float:
        """Its value."""
        return self.middle[1] + self.slope * (x - self.middle[0])

    def deviation(self, x: float, variance: float) -> float:
        """Standard deviation of one more point there."""
        own = 1 + 1 / self.count + (x - self.middle[0]) ** 2 / self.width
        return sqrt(variance * own)


@cache
def line(samples: Samples) -> Line:
    """Put a line through pairs of numbers, of which two first ones differ."""
    x, y = np.log(np.array(samples)).T
    middle = float(x.mean()), float(y.mean())
    width = float(np.sum((x - middle[0]) ** 2))
    slope = float(np.sum((x - middle[0]) * (y - middle[1]))) / width
    misses = y - middle[1] - slope * (x - middle[0])
    return Line(slope, middle, width, len(x), float(np.sum(misses**2)), len(x) - 2)


def tells(samples: Samples) -> bool:
    """Whether a line can be put through."""
    return len({x for x, _ in samples}) > 1


def regression(
    points: Sequence[Any], samples: Callable[[Any], Samples], x: Callable[[Any], float]
) -> list[Any]:
    """Predict points of one cluster; those without a line are left out."""
    from scipy.stats import t

    found = [(point, line(each)) for point in points if tells(each := samples(point))]
    lines = {one for _, one in found}
    freedom = sum(one.freedom for one in lines)
    variance = sum(one.left for one in lines) / freedom if freedom else nan
    quantile = float(t.ppf((1 + INSIDE) / 2, freedom)) if freedom else nan
    answers = []
    for point, one in found:
        time, reach = one.at(log(x(point))), quantile * one.deviation(log(x(point)), variance)
        low, high = exp(time - reach), exp(time + reach)
        answers.append(replace(point, simulated=exp(time), low=low, high=high))
    return answers


def step_samples(point: StepComparison, others: Sequence[StepComparison]) -> Samples:
    """Ranks and step times of a point's series that its line goes through."""
    alike = [
        other
        for other in others
        if other.scenario == point.scenario
        and (_without(other, SIZE) == _without(point, SIZE) or _is_its_one_rank(other, point))
    ]
    shown = [other for other in alike if not other.is_predicted]
    if not tells(found := _pairs(shown)):
        below = [other for other in alike if other.world_size < point.world_size]
        found = _pairs([*shown, *(other for other in below if other.is_predicted)])
    return found


SIZE = ("cluster.world_size",)
HOW = ("cluster", "strategy", "collectives")
"""Beginnings of keys that do not say what one rank works on."""


def _without(point: TimeComparison, keys: tuple[str, ...]) -> str:
    return str(sorted((k, str(v)) for k, v in point.set.items() if not k.startswith(keys)))


def _is_its_one_rank(other: StepComparison, point: StepComparison) -> bool:
    return other.world_size == 1 and _without(other, HOW) == _without(point, HOW)


def _pairs(points: Sequence[StepComparison]) -> Samples:
    return tuple((one.world_size, one.measured) for one in points)


def row_samples(row: CollectiveComparison, others: Sequence[CollectiveComparison]) -> Samples:
    """Sizes and times that the line of a table goes through."""
    shown = [other for other in others if not other.is_predicted and other.nbytes >= LEAST]
    for wanted in ("table", "collective", "cluster"):
        alike = [
            other
            for other in shown
            if getattr(other, wanted) == getattr(row, wanted)
            and (wanted != "table" or other.scenario == row.scenario)
        ]
        if tells(found := tuple((one.nbytes, one.measured) for one in alike)):
            return found
    return ()


def step_answers(points: Sequence[StepComparison]) -> Answers:
    """What each rule says of the steps of a cluster."""
    asked = [point for point in points if point.is_predicted]
    return {
        "simdp": list(asked),
        "linear": [replace(one, simulated=one.linear) for one in asked if one.linear is not None],
        "ring": [replace(one, simulated=one.ring) for one in asked],
        "regression": regression(
            asked, lambda one: step_samples(one, points), lambda one: one.world_size
        ),
    }


def row_answers(rows: Sequence[CollectiveComparison]) -> Answers:
    """What each rule says of the collectives of a cluster."""
    asked = [row for row in rows if row.is_predicted and row.nbytes >= LEAST]
    return {
        "simdp": list(asked),
        "ring": [replace(one, simulated=one.ring) for one in asked],
        "regression": regression(asked, lambda one: row_samples(one, rows), lambda one: one.nbytes),
    }


def in_common(answers: Answers) -> Answers:
    """Only the points that every rule has an answer for."""
    known = [{_key(one) for one in each} for each in answers.values()]
    both = set.intersection(*known)
    return {rule: [one for one in each if _key(one) in both] for rule, each in answers.items()}


def _key(point: TimeComparison) -> tuple[Any, ...]:
    place = (point.table, point.nbytes) if isinstance(point, CollectiveComparison) else ()
    return (point.scenario, str(point.set), point.measured, *place)


class Score(NamedTuple):
    """Of one rule on one cluster; None where it says nothing."""

    error: float
    tau: float | None
    inside: float | None


def score(rule: str, points: Sequence[TimeComparison], noise: float) -> Score:
    """Mean error, order and coverage of some points, one or more."""
    errors = [abs(one.error) for one in points]
    sizes = {one.nbytes if isinstance(one, CollectiveComparison) else 0 for one in points}
    taus = [
        kendall_tau([one for one in points if getattr(one, "nbytes", 0) == size], noise)
        for size in sizes
    ]
    known = [tau for tau in taus if tau is not None]
    held = rule in ("simdp", "regression") and all(one.low == one.low for one in points)
    return Score(
        sum(errors) / len(errors),
        sum(known) / len(known) if known else None,
        sum(one.is_inside for one in points) / len(points) if held else None,
    )


class Found(NamedTuple):
    """Of a cluster: points that count, of so many predicted ones, the noise and the scores."""

    name: str
    count: int
    asked: int
    noise: float
    scores: dict[str, Score]


def clusters(found: Validation, answered: Callable[[Validation], Answers]) -> Iterator[Found]:
    """Score the rules on the points that all of them answer, cluster by cluster."""
    for name in found.clusters:
        answers = answered(found.of(name))
        same, noise = in_common(answers), found.noise[name]
        if same["simdp"]:
            scores = {rule: score(rule, points, noise) for rule, points in same.items()}
            count = len(same["simdp"])
            yield Found(name, count, len(answers["simdp"]), noise, scores)


def cells(scores: dict[str, Score], noise: float) -> list[str]:
    """A row of the table."""
    found = []
    for rule, one in scores.items():
        wins = scores["simdp"].error - one.error > noise
        found.append(f"{one.error:.1%}{'*' if wins else ' '}")
        found.append("-" if one.tau is None else f"{one.tau:.2f}")
        if rule in ("simdp", "regression"):
            found.append("-" if one.inside is None else f"{one.inside:.0%}")
    return found


def mean(scores: Sequence[dict[str, Score]], weights: Sequence[float]) -> dict[str, Score]:
    """Scores of all clusters together."""

    def over(values: Sequence[float | None]) -> float | None:
        known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
        return sum(v * w for v, w in known) / sum(w for _, w in known) if known else None

    found = {}
    for rule in scores[0]:
        error, tau, inside = (over(each) for each in zip(*(s[rule] for s in scores), strict=True))
        assert error is not None
        found[rule] = Score(error, tau, inside)
    return found


def table(title: str, found: Sequence[Found]) -> Table:
    """Lay out what was found: clusters, then all of them."""
    scores = [one.scores for one in found]
    made = Table(title=title, caption=machine())
    made.add_column("cluster")
    for head in ("points", "noise"):
        made.add_column(head, justify="right")
    for rule in scores[0]:
        made.add_column(rule, justify="right")
        made.add_column("tau", justify="right")
        if rule in ("simdp", "regression"):
            made.add_column("in 90 %", justify="right")
    for one in found:
        points = f"{one.count} of {one.asked}"
        made.add_row(one.name, points, f"{one.noise:.1%}", *cells(one.scores, one.noise))
    made.add_section()
    noise = max(one.noise for one in found)
    counts = [float(one.count) for one in found]
    for said, weights in (("clusters", [1.0] * len(found)), ("points", counts)):
        count = f"{sum(weights):.0f}"
        made.add_row(f"mean over {said}", count, "", *cells(mean(scores, weights), noise))
    return made


def main() -> int:
    """Print both tables."""
    found = validate([SCENARIOS])
    console = Console(highlight=False, width=130)
    steps = [*clusters(found, lambda part: step_answers(part.points))]
    console.print(table("steps: mean error, order, coverage", steps))
    rows = [*clusters(found, lambda part: row_answers(part.rows))]
    console.print(table("collectives from 1 MiB: mean error, order, coverage", rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
