"""Intervals: how far a simulated time may be off, by how well the machine's constants are known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from simdp.cluster.machine import Calibration, read_machine
from simdp.collectives.costs import Cost
from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.scenario import Scenario
from simdp.scenario.overrides import set_key
from simdp.studies.variants import value_at, with_values

NORMAL_90 = 1.645
"""Standard deviations on either side that hold 90 % of a normal distribution."""

ROUNDING = 1e-9
"""By which a value may lie outside its interval."""

IDLE = {
    "one node": ("cluster.inter_node.",),
    "one rank": ("cluster.inter_node.", "cluster.link.", "collectives."),
}
"""Constants that decide nothing where there is one node, or one rank."""


class Variant(NamedTuple):
    """A constant, and the scenarios with either end of its interval."""

    key: str
    low: Scenario
    high: Scenario


class Interval(NamedTuple):
    """The 90 % interval of a simulated time [s]."""

    low: float
    high: float


class Known(NamedTuple):
    """How well some constants are known.

    Attributes
    ----------
    place : str
        Where that stands; a scenario's own are ``OWN``.
    calibration : Calibration
        The constants' intervals, and what they were fitted to.
    replaced : tuple of str
        Parts of the machine that the scenario has in another form, and whose constants are left
        out of the intervals: ``intra``, ``inter``, ``device``; ``cost`` where links are played.
    """

    place: str
    calibration: Calibration
    replaced: tuple[str, ...] = ()

    def only(self, keys: Collection[str]) -> Known:
        """The same with some constants alone, and without what all of them leave unexplained."""
        intervals = {k: ends for k, ends in self.calibration.intervals.items() if k in keys}
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def without(self, keys: Collection[str]) -> Known:
        """The same without some constants, and without what all of them leave unexplained."""
        whole = {key.rpartition(".")[0] for key in keys}  # shares of all protocols together
        intervals = {
            key: ends
            for key, ends in self.calibration.intervals.items()
            if key not in keys and key not in whole
        }
        update = {"intervals": intervals, "residual": 0.0}
        return self._replace(calibration=self.calibration.model_copy(update=update))

    def with_replaced(self, parts: Collection[str]) -> Known:
        """The same for a scenario that writes some parts of the machine anew."""
        if not parts:
            return self
        gone = tuple(key for part in parts for key in OF_PART[part])
        intervals = {
            key: ends
            for key, ends in self.calibration.intervals.items()
            if not key.startswith(gone)
        }
        calibration = self.calibration.model_copy(update={"intervals": intervals})
        return Known(self.place, calibration, tuple(sorted({*self.replaced, *parts})))


OWN = "measured.calibration"

POOL = "list constants"
"""Place of what is known of every cluster of a class."""

COST = "collectives.cost."

OF_PART = {
    "intra": tuple(
        COST + key for key in ("efficiency.intra", "hop.intra", "nvls_", "host_bandwidth", "peer")
    ),
    "inter": tuple(
        COST + key
        for key in ("efficiency.inter", "hop.inter", "flow_bandwidth", "two_nodes", "network")
    ),
    "device": ("cluster.device",),
    "cost": (COST,),
}
"""Keys of the constants that were fitted to a part of a machine, by what they begin with."""


def machine_calibration(name: str | None, base: Path) -> list[Known]:
    """What is known of a machine's constants; nothing where none were fitted."""
    found = None if name is None else read_machine(name, base).calibration
    return [] if name is None or found is None else [Known(name, found)]


def variants(scenario: Scenario, known: Sequence[Known]) -> list[Variant]:
    """Make the scenarios with the ends of every interval that bears on a point.

    Parameters
    ----------
    scenario : Scenario
        One point.
    known : sequence of Known
        The first that knows a constant counts. A machine's constant is passed over where the
        scenario has another value in its place.

    Raises
    ------
    ScenarioError
        If an interval of the scenario's own has no such key, or does not hold its value.
    """
    cluster = scenario.cluster
    idle = IDLE["one rank"] if cluster.world_size == 1 else ()
    idle = idle or (IDLE["one node"] if cluster.num_nodes == 1 else ())
    raw = scenario.resolved()
    found: dict[str, Variant] = {}
    for place, calibration, _ in known:
        own = place == OWN
        for key, ends in calibration.intervals.items():
            is_there = own or place == POOL or value_at(raw, key) is not None
            if key.startswith(idle) or key in found or not is_there:
                continue
            where = f"{place}.intervals.{key}"
            low, high = (with_values(scenario, raw, {key: end}, where) for end in ends)
            ends_hold = is_between(*(value_at(one, key) for one in (low, scenario, high)))
            if place == POOL or ends_hold:
                found[key] = Variant(key, low, high)
            elif own:
                raise ScenarioError(
                    [
                        f"{where}: {ends[0]} ... {ends[1]} does not hold the "
                        "scenario's value; correct one of them."
                    ]
                )
    return list(found.values())


def cost_variants(cost: Cost, known: Sequence[Known]) -> list[tuple[Cost, Cost]]:
    """Make the costs with the ends of every interval of a machine that bears on one.

    Parameters
    ----------
    cost : Cost
        A constant for which it has another value than the machine is passed over.
    known : sequence of Known
        What is known of the machine's constants.
    """
    raw, found = cost.model_dump(mode="json"), []
    for place, calibration, _ in known:
        for key, ends in calibration.intervals.items():
            inside = key.removeprefix(COST)
            if inside == key or (place != POOL and value_at(cost, inside) is None):
                continue
            low, high = (_with_constant(cost, raw, inside, end, f"{place}: {key}") for end in ends)
            ends_hold = is_between(*(value_at(one, inside) for one in (low, cost, high)))
            if place == POOL or ends_hold:
                found.append((low, high))
    return found


def _with_constant(cost: Cost, raw: dict[str, Any], key: str, value: Any, where: str) -> Cost:
    changed = copy.deepcopy(raw)
    set_key(changed, key, value)
    try:
        return type(cost).model_validate(changed)
    except ValidationError as error:
        raise ScenarioError([f"{where}: {p.line}" for p in problems(error, changed)]) from None


def residual(known: Sequence[Known]) -> float:
    """Standard deviation of what the fits of constants leave unexplained; relative."""
    return sqrt(sum(one.calibration.residual**2 for one in known))


def spread(time: float, ends: Sequence[tuple[float, float]], rest: float) -> Interval:
    """Put the effects of constants on a time together, as if they were independent.

    Parameters
    ----------
    time : float
        With every constant at its value [s].
    ends : sequence of (float, float)
        With one constant at either end of its 90 % interval [s].
    rest : float
        Relative standard deviation of everything else.

    Returns
    -------
    Interval
        Down and up, each the root of the squares of the changes to that side, and of the rest's.
    """
    square = (NORMAL_90 * rest * time) ** 2
    down = sum(min(0.0, low - time, high - time) ** 2 for low, high in ends)
    up = sum(max(0.0, low - time, high - time) ** 2 for low, high in ends)
    return Interval(max(time - sqrt(down + square), 0.0), time + sqrt(up + square))


def is_between(low: Any, value: Any, high: Any) -> bool:
    """Whether a number lies between two ends, in whichever order these are."""
    if not all(isinstance(one, int | float) for one in (low, value, high)):
        return False
    low, high = min(low, high), max(low, high)
    slack = ROUNDING * max(abs(low), abs(high))
    return bool(low - slack <= value <= high + slack)


Seconds = Callable[[Sequence[Scenario]], Sequence[float]]
"""Simulates scenarios [s]."""


def interval(time: float, scenario: Scenario, known: Sequence[Known], seconds: Seconds) -> Interval:
    """Find the 90 % interval of a time.

    Parameters
    ----------
    time : float
        Of the scenario [s].
    scenario : Scenario
        One point.
    known : sequence of Known
        How well its constants are.
    seconds : callable
        Simulates others.
    """
    return interval_of_pairs(time, pairs_of(scenario, known), known, seconds)


def pairs_of(scenario: Scenario, known: Sequence[Known]) -> list[tuple[Scenario, Scenario]]:
    """The scenarios of `variants`, without their keys."""
    return [(one.low, one.high) for one in variants(scenario, known)]


def interval_of_pairs(
    time: float,
    pairs: Sequence[tuple[Scenario, Scenario]],
    known: Sequence[Known],
    seconds: Seconds,
) -> Interval:
    """As `interval`, with pairs of scenarios that have something at either end of its interval."""
    each = seconds([*(low for low, _ in pairs), *(high for _, high in pairs)])
    ends = list(zip(each[: len(pairs)], each[len(pairs) :], strict=True))
    return spread(time, ends, residual(known))
