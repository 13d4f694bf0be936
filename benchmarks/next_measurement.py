"""What a measurement that is chosen by the rule is worth, beside one that is chosen at random.

python -m benchmarks.next_measurement

For each cluster with enough of ``scenarios/validation`` a few measured points are drawn, and the
constants are fitted to these alone. Then one more measurement is added, of those that were made:
the one that `next_measurement.variance_left` names, or any. What is asked for
was measured, too, and is in neither:

collectives
    The size next to 25 MiB of the table with the most ranks. Drawn: `DRAWN` rows of the tables of
    that collective. More: any two rows of one table. Constants: those of the published cost that
    the rows bear on, as ``calibrate nccl-tests`` has them.
steps
    The point of a scenario with the most ranks. Drawn: `DRAWN_STEPS` points of the same work, of
    the half with the fewest ranks. More: another one on fewer ranks than the target. Constants:
    the first two of the machine's entry, begun at `BEGUN` times their values.

Both figures are of what was asked for: half of the 90 % interval that the constants leave, and the
error of the prediction; means over the draws, at random over some of the measurements. An interval
may grow: the noise that it stands on is that of the fit, which a few points meet too well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.table import machine
from simdp.arrays import Floats
from simdp.cluster.hardware import read_machine
from simdp.collectives.costs.nccl import NcclCost
from simdp.engine.recorded_script import Stopwatch
from simdp.errors import UnitError
from simdp.rng import stream
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.studies.calibrate.fit import (
    CalibrationPoint,
    Candidates,
    Constant,
    fit,
    jacobian,
    nccl_constants,
    restraints,
    typical_values,
)
from simdp.studies.calibrate.next_measurement import variance_left
from simdp.studies.calibrate.steps import MeasuredStep, measured_steps, written
from simdp.studies.intervals import NORMAL_90
from simdp.studies.validate.jobs import load_measured
from simdp.studies.variants import value_at, with_values
from simdp.units import parse

SCENARIOS = Path(__file__).parents[1] / "scenarios" / "validation"
STEPS = (
    "pollux/pollux-g4dn_resnet50",
    "pollux/pollux-g4dn_yolov3",
    "sia/sia-rtx_resnet50",
    "hkbu/hkbu-10gbe_resnet50",
    "hkbu/hkbu-100gbe_resnet50",
    "hkbu/hkbu-ib100_resnet50",
    "torch-ddp/ptddp-v100_resnet50",
)
"""Scenarios with steps of one work at several numbers of ranks, some with several settings."""

DRAWN, DRAWN_STEPS, DRAWS, MORE = 4, 3, 4, 6
"""Rows and points to begin with; how often they are drawn; how many more measurements at random."""

BEGUN, MOST = 1.5, 2.0
"""Where constants of steps start, over their values; and the most that a share may be."""

BUCKET = 25 * 2**20

Predict = Callable[[Sequence[int]], Callable[[Floats], Floats]]


class Case(NamedTuple):
    """Something that is asked for, on one cluster.

    Attributes
    ----------
    cluster : str
        Its name.
    predict : callable
        Makes, by numbers of points, the function from constants to their times.
    seconds : ndarray
        Measured times [s].
    constants : sequence of Constant
        What is fitted.
    restraints : callable or None
        As for `fit`.
    target : int
        The point that is asked for.
    more : sequence of tuple of int
        Measurements that may be added: their points.
    first : sequence of int
        Points to begin with are of these.
    drawn : int
        How many of them.
    starts : int
        Of the fit's search.
    step : float
        Of derivatives.
    """

    cluster: str
    predict: Predict
    seconds: Floats
    constants: Sequence[Constant]
    restraints: Callable[[Floats], Floats] | None
    target: int
    more: Sequence[tuple[int, ...]]
    first: Sequence[int]
    drawn: int
    starts: int
    step: float


class Known(NamedTuple):
    """How well what was asked for is known: half the interval, and the error; relative."""

    reach: float
    error: float


def table_cases() -> Iterator[Case]:
    """A case for each scenario with tables."""
    for scenario in load_measured([SCENARIOS / "nccl-tests"]).values():
        case = _table_case(scenario)
        if case is not None:
            yield case


def _table_case(scenario: Scenario) -> Case | None:
    measured, tables = scenario.measured, scenario.measured_scenarios()[1]
    assert measured is not None
    names = [table.collective for table in measured.collectives]
    wanted = "all_reduce" if "all_reduce" in names else names[0]
    points, seconds, owner = list[CalibrationPoint](), list[float](), list[int]()
    for number, (table, made) in enumerate(zip(measured.collectives, tables, strict=True)):
        if table.collective == wanted:
            for nbytes, time in table.times:
                points.append(CalibrationPoint(wanted, float(nbytes), wiring_of(made.cluster)))
                seconds.append(time)
                owner.append(number)
    most = max(point.wiring.world_size for point in points)
    largest = [i for i, point in enumerate(points) if point.wiring.world_size == most]
    target = min(largest, key=lambda i: abs(log(points[i].nbytes / BUCKET)))
    whole = scenario.collectives.cost.model_dump(mode="json")
    kept = {key: whole[key] for key in ("algorithms", "protocols", "stages")}
    cost = NcclCost.model_validate({"kind": "nccl", **kept})
    constants = nccl_constants(cost, points, is_given=True)
    base = typical_values(cost, points)
    keys = [constant.key for constant in constants]

    def predict(chosen: Sequence[int]) -> Callable[[Floats], Floats]:
        made = Candidates(cost, [points[i] for i in chosen])
        return lambda values: made.seconds({**base, **dict(zip(keys, values, strict=True))})

    rest = [i for i in range(len(points)) if i != target]
    pairs = [pair for pair in combinations(rest, 2) if owner[pair[0]] == owner[pair[1]]]
    known = restraints(constants, base)
    name = scenario.name.removeprefix("nccl_")
    if len(rest) < DRAWN + 3:
        return None
    return Case(
        name, predict, np.array(seconds), constants, known, target, pairs, rest, DRAWN, 3, 1e-4
    )


def step_cases() -> Iterator[Case]:
    """A case for each of `STEPS`."""
    for name in STEPS:
        steps = measured_steps([SCENARIOS / f"{name}.yaml"])
        several = [step for step in steps if step.scenario.cluster.world_size > 1]
        target = max(several, key=_size)
        alike = [step for step in several if _same(step) == _same(target)]
        below = sorted((one for one in alike if _size(one) < _size(target)), key=_size)
        points = [*below, target]
        yield Case(
            Path(name).name,
            StepTimes(points, _constants(target)),
            np.array([point.seconds for point in points]),
            _constants(target),
            None,
            len(below),
            [(i,) for i in range(len(below))],
            range((len(below) + 1) // 2),
            DRAWN_STEPS,
            1,
            1e-2,
        )


def _same(step: MeasuredStep) -> tuple[Any, int]:
    cluster = step.scenario.cluster
    return step.scenario.workload, cluster.devices_per_node


def _size(step: MeasuredStep) -> int:
    return step.scenario.cluster.world_size


def _constants(step: MeasuredStep) -> list[Constant]:
    """The first two of the machine's entry, begun at `BEGUN` times their values."""
    name = step.scenario.cluster.machine
    assert name is not None
    calibration = read_machine(name, step.scenario.base).calibration
    assert calibration is not None
    found = []
    for key in calibration.intervals:
        value, dimension = value_at(step.raw, key), None
        for unit in ("time", "bandwidth"):
            with suppress(UnitError):  # else a plain number
                value, dimension = parse(value, unit), unit
                break
        most = 30 * value if dimension else MOST
        found.append(Constant(key, dimension, BEGUN * value, value / 30, most))
    return found[:2]


class StepTimes:
    """Makes the function from constants to the times of some points; each is played once."""

    def __init__(self, points: Sequence[MeasuredStep], constants: Sequence[Constant]) -> None:
        self.points, self.constants = points, constants
        self.watch = cache(lambda i: Stopwatch(points[i].scenario))

    def __call__(self, chosen: Sequence[int]) -> Callable[[Floats], Floats]:
        """Times [s] of the points of these numbers."""

        def times(values: Floats) -> Floats:
            texts = written(self.constants, values)
            found = []
            for i in chosen:
                point = self.points[i]
                found += self.watch(i).step_times([with_values(point.scenario, point.raw, texts)])
            return np.array(found)

        return times


def known(case: Case, chosen: Sequence[int]) -> tuple[Known, Floats, Floats, float]:
    """Fit to some points; with the covariance, the constants' values and the noise."""
    found = fit(
        case.predict(chosen),
        case.seconds[list(chosen)],
        case.constants,
        case.starts,
        case.restraints,
    )
    predict = case.predict([case.target])
    goal = jacobian(predict, found.values, case.step)
    reach = NORMAL_90 * float(np.sqrt(np.sum(goal @ found.covariance * goal)))
    error = abs(float(predict(found.values)[0]) / case.seconds[case.target] - 1)
    return Known(reach, error), found.covariance, found.values, found.noise


def by_rule(
    case: Case, more: Sequence[tuple[int, ...]], covariance: Floats, values: Floats, noise: float
) -> tuple[int, ...]:
    """The measurement that the rule names."""
    every = sorted({i for each in more for i in each})
    row = {i: number for number, i in enumerate(every)}
    slopes = jacobian(case.predict(every), values, case.step)
    goal = jacobian(case.predict([case.target]), values, case.step)
    rows = np.array([slopes[[row[i] for i in each]] for each in more])
    return more[int(np.argmin(variance_left(covariance, goal, rows, noise)))]


def tried(case: Case) -> tuple[Known, Known, Known]:
    """Before, with what the rule names, and with what chance does; means over the draws."""
    rng = stream(0, "next_measurement", case.cluster)
    results = []
    for _ in range(DRAWS):
        begun = [int(i) for i in rng.choice(case.first, case.drawn, replace=False)]
        more = [each for each in case.more if not {*each} & {*begun}]
        before, *rest = known(case, begun)
        named, *_ = known(case, [*begun, *by_rule(case, more, *rest)])
        picks = rng.choice(len(more), min(MORE, len(more)), replace=False)
        others = [known(case, [*begun, *more[int(i)]])[0] for i in picks]
        results.append((before, named, _mean(others)))
    before, named, chance = (_mean(each) for each in zip(*results, strict=True))
    return before, named, chance


def _mean(each: Sequence[Known]) -> Known:
    return Known(*(float(value) for value in np.mean(np.array(each), axis=0)))


def main() -> int:
    """Print the table."""
    table = Table(title="one more measurement, by the rule and at random", caption=machine())
    table.add_column("cluster")
    for what in ("interval", "error"):
        for head in (f"{what} before", "by rule", "at random"):
            table.add_column(head, justify="right")
    for cases in (table_cases(), step_cases()):
        every = []
        for case in cases:
            found = tried(case)
            every.append(found)
            table.add_row(case.cluster, *_cells(found))
        table.add_section()
        means = tuple(_mean(each) for each in zip(*every, strict=True))
        table.add_row(f"mean of {len(every)}", *_cells(means))
        table.add_section()
    Console(highlight=False, width=110).print(table)
    return 0


def _cells(found: Sequence[Known]) -> list[str]:
    return [f"{one.reach:.1%}" for one in found] + [f"{one.error:.1%}" for one in found]


if __name__ == "__main__":
    raise SystemExit(main())
