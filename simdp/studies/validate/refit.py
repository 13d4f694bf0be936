"""Refit: the constants of a cluster from what remains of its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster.machine import Calibration
from simdp.collectives.costs.nccl import NcclCost
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of
from simdp.studies.calibrate.candidates import Candidates, Point
from simdp.studies.calibrate.constants import nccl_constants, restraints, typical_values
from simdp.studies.calibrate.fit import Constant, Fit, fit
from simdp.studies.validate.folds import Item
from simdp.studies.validate.intervals import COST, NORMAL_90, Known
from simdp.studies.validate.unmeasured import as_unmeasured
from simdp.studies.variants import with_values

LEAST_SHARE = 1e-3
"""Of a covariance's trace: a direction that is known better moves no interval."""


Numbers = dict[str, float]
"""Constants by key [SI]."""


def by_key(constants: Sequence[Constant], values: Floats) -> Numbers:
    """Values of constants, by key."""
    return {one.key: float(value) for one, value in zip(constants, values, strict=True)}


class Refitted(NamedTuple):
    """Constants that were fitted again.

    Attributes
    ----------
    constants : tuple of Constant
        Which.
    values : ndarray, shape `(num_constants,)`
        What was found.
    covariance : ndarray, shape `(num_constants, num_constants)`
        Of their logarithms.
    residual : float
        Relative standard deviation of what they leave unexplained.
    tables : dict of str to list of int
        Collectives and numbers of nodes of the tables that they were fitted to.
    """

    constants: tuple[Constant, ...]
    values: Floats
    covariance: Floats
    residual: float
    tables: dict[str, list[int]]

    def told(self) -> Numbers:
        """The values, by key [SI]."""
        return by_key(self.constants, self.values)

    def ends(self) -> list[tuple[Numbers, Numbers]]:
        """Values at both ends of the 90 % interval of each independent direction.

        Constants are known together: of a bandwidth and a latency a table may tell the sum. The
        eigenvectors of the covariance are what is independent.
        """
        variances, directions = np.linalg.eigh(self.covariance)
        low = np.array([constant.low for constant in self.constants])
        high = np.array([constant.high for constant in self.constants])
        found = []
        for variance, direction in zip(variances, directions.T, strict=True):
            shift = NORMAL_90 * sqrt(max(variance, 0.0)) * direction
            if np.abs(shift).max() < LEAST_SHARE:
                continue
            both = (np.clip(self.values * np.exp(s * shift), low, high) for s in (-1, 1))
            down, up = (by_key(self.constants, each) for each in both)
            found.append((down, up))
        return found

    def known(self) -> Known:
        """What else intervals are made of."""
        fitted = Calibration(data="what was not left out", tables=self.tables)
        return Known("refitted", fitted.model_copy(update={"residual": self.residual}))


def refitted(found: Fit, noise: float, tables: dict[str, list[int]]) -> Refitted:
    """Take in a fit; its residual is no less than the noise of the data."""
    residual = max(found.noise, noise)
    return Refitted(found.constants, found.values, found.covariance, residual, tables)


# Tables ------------------------------------------------------------------------------------------


def bare_cost(item: Item) -> tuple[Scenario, list[Known]]:
    """A table as that of an unmeasured cluster, but for what it sets itself."""
    bare, known = as_unmeasured(item.made)
    chosen = item.table.set if item.is_table else item.point.set
    own = {key: value for key, value in chosen.items() if key.startswith(COST)}
    return (with_values(bare, bare.resolved(), own, item.place) if own else bare), known


def fitting_tables(remaining: Sequence[Item]) -> list[Item]:
    """Tables that constants may be fitted to: all that remain, whatever the entry was fitted to."""
    timed = (i for i in remaining if i.is_table and isinstance(i.made.collectives.cost, NcclCost))
    return [item for item in timed if item.made.cluster.world_size > 1]


def refit_tables(remaining: Sequence[Item], noise: float) -> Refitted | None:
    """Fit NCCL's constants to the tables that remain of a cluster.

    Parameters
    ----------
    remaining : sequence of Item
        Of one cluster.
    noise : float
        Of its measurements.

    Returns
    -------
    Refitted or None
        None where no table remains that NCCL's formula tells of.
    """
    tables = fitting_tables(remaining)
    if not tables:
        return None
    parts = [_Rows(item) for item in tables]
    points = [point for part in parts for point in part.points]
    template = max(parts, key=lambda part: part.reach).typical
    constants = nccl_constants(template, points, is_given=True)
    keys, base = [constant.key for constant in constants], typical_values(template, points)

    def predict(values: Floats) -> Floats:
        now = {**base, **dict(zip(keys, values, strict=True))}
        return np.concatenate([part.seconds(now) for part in parts])

    measured = np.array([seconds for part in parts for seconds in part.measured])
    found = fit(predict, measured, constants, restraints=restraints(constants, base))
    fitted = dict[str, list[int]]()
    for item in tables:
        nodes = fitted.setdefault(item.table.collective, [])
        nodes.append(item.made.cluster.num_nodes)
    named = tuple(
        Constant(f"{COST}{one.key}", one.dimension, one.typical, one.low, one.high, one.spread)
        for one in found.constants
    )
    return refitted(found, noise, fitted)._replace(constants=named)


class _Rows:
    """The rows of a table that constants are fitted to."""

    def __init__(self, item: Item) -> None:
        (typical, _), (made, _) = as_unmeasured(item.made), bare_cost(item)
        cost = made.collectives.cost
        assert isinstance(cost, NcclCost)
        assert isinstance(typical.collectives.cost, NcclCost)
        self.typical = typical.collectives.cost
        self.reach = item.made.cluster.num_nodes > 1, item.made.cluster.local_size > 1
        wiring, table = wiring_of(made.cluster), item.table
        rows = [
            (nbytes, seconds)
            for (nbytes, seconds), role in zip(table.times, table.roles(), strict=True)
            if table.calibration == "none" or role == "calibration"
        ]
        self.points = [Point(table.collective, float(nbytes), wiring) for nbytes, _ in rows]
        self.measured = [seconds for _, seconds in rows]
        own = [key.removeprefix(COST) for key in table.set if key.startswith(COST)]
        self.own = {
            key: value
            for key, value in typical_values(cost, self.points).items()
            if any(key == one or key.startswith(f"{one}.") for one in own)
        }
        self._candidates = Candidates(cost, self.points)

    def seconds(self, constants: Mapping[str, float]) -> Floats:
        return self._candidates.seconds({**constants, **self.own})
