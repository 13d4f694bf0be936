"""Refit by steps: the constants that a machine's entry had fitted, from the steps that remain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Any

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.cluster.machine import read_machine
from simdp.collectives.costs.nccl import NcclCost
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of
from simdp.studies.calibrate.fit import NOISE, Constant
from simdp.studies.calibrate.steps import REACH, Watched, fit_watched, predictor, read
from simdp.studies.validate.folds import Item
from simdp.studies.validate.intervals import (
    COST,
    NORMAL_90,
    OWN,
    Known,
    is_between,
    machine_calibration,
)
from simdp.studies.validate.refit import Refitted, bare_cost, by_key, refitted
from simdp.studies.variants import value_at, with_numbers, with_values

WIDE: dict[str | None, tuple[float, float]] = {
    "time": (1e-6, 1e-2),
    "bandwidth": (1e8, 1e12),
    None: (1e-3, 10.0),
}
"""Bounds of a constant of which nothing is published, by its dimension [SI]."""

MOST = 4.0
"""What a share may be at most."""

LATENCY = 1000.0
"""So many times smaller or larger than published a time may be: TCP's are hundreds of times."""

SHARE = 1.5
"""Spread of a share of a bandwidth around what is published."""

GRID = 9
"""Values of each constant among which the search looks for its start: a limit that nothing reaches
has no slope."""

JITTER, JITTERS = 0.01, 0.6
"""How far ranks of GPU clusters scatter about their mean, and its own spread: 0.004 to 0.03."""

MOVES = 1e-9
"""Change of a logarithm from which on a constant bears on a time."""


class Intake:
    """How a point takes in constants that were fitted without it.

    Parameters
    ----------
    item : Item
        A point.
    scenario : Scenario
        The same point.
    tables : Refitted or None
        What the tables that remain of the cluster tell.
    knows_cost : bool
        Whether the constants of collectives that steps were not fitted to may stay.
    unmeasured : bool
        Whether nothing is known of the whole cluster; else what was fitted to others stays.

    Attributes
    ----------
    keys : list of str
        Constants that may be fitted again: those of the machine's that the point has.
    prior : list of Known
        How well they are known without any measurement.
    """

    def __init__(
        self,
        item: Item,
        scenario: Scenario,
        tables: Refitted | None,
        knows_cost: bool,
        unmeasured: bool = False,
    ) -> None:
        own = item.measured.calibration
        calibrated = [] if own is None else [Known(OWN, own)]
        calibrated += machine_calibration(scenario.cluster.machine, scenario.base)
        self.own = calibrated[: own is not None]
        taken = set[str]() if unmeasured else _taken(scenario, calibrated)
        self.keys = [key for key in _held(scenario, calibrated) if key not in taken]
        made = scenario if own is None else scenario.model_copy(update={"measured": item.measured})
        bare, prior = bare_cost(item._replace(made=made))
        self.prior = prior + [known.only(taken) for known in calibrated[len(self.own) :]]
        self.bare, self._entry = bare.resolved(), scenario.resolved()
        self._ties = _ties(scenario, self.keys)
        if not knows_cost or tables is not None:
            collectives = scenario.collectives.model_copy(update={"cost": bare.collectives.cost})
            scenario = scenario.model_copy(update={"collectives": collectives})
            self._ties = {}
        start = {key: self._published(key) for key in self.keys}
        scenario = with_values(scenario, self._entry, start, item.place) if start else scenario
        self.base = scenario if tables is None else with_numbers(scenario, tables.told())

    def _published(self, key: str) -> Any:
        value = value_at(self.bare, key)
        return JITTER if value is None and _is_jitter(key) else value

    def dimension(self, key: str) -> str | None:
        """Of a constant; None for a plain number."""
        return read(key, value_at(self._entry, key))[1]

    def take(self, values: Mapping[str, float]) -> Scenario:
        """The point with constants [SI]; those that it has otherwise stay."""
        taken = {key: value for key, value in values.items() if key in self.keys}
        for key, ratio in self._ties.items():
            taken[key] = ratio * self._simple_share(key.split(".")[3], taken)
        return with_numbers(self.base, taken) if taken else self.base

    def _simple_share(self, place: str, values: Mapping[str, float]) -> float:
        """Share of a bandwidth that Simple gets with some values."""
        cost = self.base.collectives.cost
        assert isinstance(cost, NcclCost)
        usual = getattr(cost.efficiency, place).simple
        share = values.get(f"{COST}efficiency.{place}.simple", usual)
        flow = values.get(f"{COST}flow_bandwidth", cost.flow_bandwidth)
        return _simple_share(self.base, place, share, flow)


def _taken(scenario: Scenario, calibrated: Sequence[Known]) -> set[str]:
    """Keys of constants that were fitted to machines of other sites."""
    base, own = scenario.base, scenario.cluster.machine
    site = own and (read_machine(own, base).site or own)
    return {
        key
        for _, calibration, _ in calibrated
        for key, machine in calibration.taken.items()
        if (read_machine(machine, base).site or machine) != site
    }


def _held(scenario: Scenario, calibrated: Sequence[Known]) -> list[str]:
    """Keys of fitted constants that a scenario has the values of."""
    keys = dict[str, None]()
    for place, calibration, _ in calibrated:
        for key, ends in calibration.intervals.items():
            value = value_at(scenario, key)
            if key.startswith("workload.") or not isinstance(value, int | float):
                continue
            low, high = (read(key, end)[0] for end in ends)
            if place == OWN or calibrated[0].place == OWN or is_between(low, value, high):
                keys[key] = None
    return list(keys)


def _ties(scenario: Scenario, keys: Sequence[str]) -> dict[str, float]:
    """Shares of LL and LL128 that stand in an entry by what Simple gets, as parts of that."""
    entry, found = scenario.collectives.cost, dict[str, float]()
    if not isinstance(entry, NcclCost):
        return found
    for place in ("intra", "inter") if scenario.cluster.num_nodes > 1 else ("intra",):
        given = getattr(entry.efficiency, place)
        for name in ("ll", "ll128"):
            key = f"{COST}efficiency.{place}.{name}"
            if key not in keys and getattr(given, name) is not None:
                simple = _simple_share(scenario, place, given.simple, entry.flow_bandwidth)
                found[key] = getattr(given, name) / simple
    return {key: ratio for key, ratio in found.items() if ratio <= 1}


def _simple_share(scenario: Scenario, place: str, share: float | None, flow: float | None) -> float:
    """Share of a bandwidth that Simple gets, flows that limit it included."""
    cost = scenario.collectives.cost
    assert isinstance(cost, NcclCost)
    if share is None:
        share = cost.share(place, "simple", wiring_of(scenario.cluster))
    if place == "intra" or flow is None:
        return share
    return min(share, flow * cost.flows_per_pair / wiring_of(scenario.cluster).inter_bandwidth)


# The fit -----------------------------------------------------------------------------------------


def refit_steps(
    points: Sequence[tuple[Watched, Intake]], tables: Refitted | None, noise: float
) -> Refitted:
    """Fit constants to the steps that remain.

    Parameters
    ----------
    points : sequence of (Watched, Intake)
        Those of calibration.
    tables : Refitted or None
        What tables tell of the same constants.
    noise : float
        Of the cluster's measurements.

    Returns
    -------
    Refitted
        With the constants that the points bear on; without any, none.
    """
    constants = [
        _constant(key, next(intake for _, intake in points if key in intake.keys), tables)
        for key in dict.fromkeys(key for _, intake in points for key in intake.keys)
    ]
    intakes = {id(watched): intake for watched, intake in points}

    def take(one: Watched, constants: Sequence[Constant], values: Floats) -> Scenario:
        return intakes[id(one)].take(by_key(constants, values))

    watched = [one for one, _ in points]
    moved = _moved(watched, constants, take)
    by_constant, by_point = np.atleast_1d(moved.any(axis=0)), np.atleast_1d(moved.any(axis=1))
    constants = [one for one, does in zip(constants, by_constant, strict=True) if does]
    used = [one for one, does in zip(watched, by_point, strict=True) if does]
    if not constants:
        return Refitted((), np.zeros(0), np.zeros((0, 0)), noise, {})
    start = _start(used, constants, take)
    return refitted(fit_watched(used, constants, take, start), noise, {})


def _is_jitter(key: str) -> bool:
    """Whether a constant is how far ranks scatter."""
    return key.startswith("cluster.stragglers.") and key.endswith(".sigma")


def _grid(constant: Constant) -> Floats:
    """Values of a constant all over its bounds, the ends left out."""
    inner: Floats = np.geomspace(constant.low, constant.high, GRID + 2)[1:-1]
    return inner


def _moved(points: Sequence[Watched], constants: Sequence[Constant], take: Any) -> Bools:
    """Which constants bear on which points anywhere, `(num_points, num_constants)`."""
    found = np.zeros((len(points), len(constants)), dtype=bool)
    if not points or not constants:
        return found
    predict = predictor(points, constants, take)
    typical = np.array([constant.typical for constant in constants])
    for index, constant in enumerate(constants):
        times = np.log(predict(_varied(typical, index, _grid(constant)[:: GRID // 2])))
        found[:, index] = np.ptp(times, axis=0) > MOVES
    return found


def _varied(values: Floats, index: int, each: Floats) -> Floats:
    """Sets of values of which one differs, `(num_sets, num_constants)`."""
    sets: Floats = np.tile(values, (len(each), 1))
    sets[:, index] = each
    return sets


def _start(points: Sequence[Watched], constants: Sequence[Constant], take: Any) -> Floats:
    """The best of a grid, one constant after the other, the weightiest as they are listed."""
    predict = predictor(points, constants, take)
    target = np.log([point.step.seconds for point in points])
    best = np.array([constant.typical for constant in constants])

    typical, spread = best, np.array([constant.spread for constant in constants])
    for _ in range(2):
        for index, constant in enumerate(constants):
            sets = np.vstack([best, _varied(best, index, _grid(constant))])
            misses = (np.log(predict(sets)) - target) / NOISE
            far = np.log(sets / typical) / spread
            costs = np.sum(np.hypot(1, misses) - 1, axis=1) + np.sum(far**2, axis=1) / 2
            best = sets[int(np.argmin(costs))]
    return best


def _constant(key: str, intake: Intake, tables: Refitted | None) -> Constant:
    """Where a constant lies before any step tells of it, and how far around."""
    if tables is not None:
        for index, one in enumerate(tables.constants):
            if one.key == key:
                deviation = sqrt(float(tables.covariance[index, index]))
                value = float(tables.values[index])
                return Constant(key, one.dimension, value, one.low, one.high, deviation)
    if _is_jitter(key):
        return Constant(key, None, JITTER, 1e-4, 1.0, JITTERS)
    written = value_at(intake.bare, key)
    value, dimension = 0.0 if written is None else read(key, written)[0], intake.dimension(key)
    if value <= 0 or not key.startswith(COST):
        low, high = WIDE[dimension]
        return Constant(key, dimension, sqrt(low * high), low, high, log(high / low) / 2)
    reach, spread = (LATENCY, log(REACH)) if dimension == "time" else (REACH, SHARE)
    low, high = value / reach, value * reach
    for _, calibration, _ in intake.prior:
        if key in calibration.intervals:
            ends = [read(key, end)[0] for end in calibration.intervals[key]]
            spread = log(ends[1] / ends[0]) / (2 * NORMAL_90)
            low, high = value / exp(6 * spread), value * exp(6 * spread)
    return Constant(key, dimension, value, low, high if dimension else min(high, MOST), spread)
