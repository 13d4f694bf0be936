"""Chooses the next measurement: the one that narrows an interval most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, grouped, product
from simdp.collectives.costs import Wiring
from simdp.engine.recorded_script import Stopwatch
from simdp.errors import LedBy, ScenarioError
from simdp.results.calibration import NextPoint, Proposal, WantedStep
from simdp.scenario import checked
from simdp.scenario.overrides import as_written
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.studies.calibrate.fit import NOISE, CalibrationPoint, Fit, jacobian
from simdp.studies.calibrate.steps import written
from simdp.studies.intervals import NORMAL_90
from simdp.studies.validate import clock_of
from simdp.studies.validate.jobs import shortened
from simdp.studies.variants import with_values
from simdp.units import format_quantity

SIZES = tuple(float(2**k) for k in range(3, 31))  # sizes to propose: 8 bytes to 1 GiB


def variance_left(covariance: Floats, goals: Floats, measured: Floats, noise: float) -> Floats:
    """Mean variance of predictions after each of some measurements.

    With the covariance C of the constants, the slopes g of a prediction and the rows J of a
    measurement whose times have the noise s, the variance g C g falls by
    ``g C J' (s^2 + J C J')^-1 J C g``.

    Parameters
    ----------
    covariance : ndarray, shape `(num_constants, num_constants)`
        Of the logarithms of the constants.
    goals : ndarray, shape `(num_goals, num_constants)`
        Slopes of the logarithms of predictions.
    measured : ndarray, shape `(num_measurements, num_times, num_constants)`
        Slopes of the times of each measurement.
    noise : float
        Relative standard deviation of one time.

    References
    ----------
    Atkinson, Donev and Tobias, "Optimum experimental designs, with SAS", 2007, chapter 10: for a
    single prediction c-optimality, for several V-optimality.
    """
    shared = product(measured, covariance, goals.T)
    own = product(measured, covariance, measured.transpose(0, 2, 1))
    own += noise**2 * np.eye(measured.shape[1])
    gains = np.sum(shared * np.linalg.solve(own, shared), axis=1)
    before = np.sum(product(goals, covariance) * goals, axis=1)
    left: Floats = np.maximum(before - gains, 0.0).mean(axis=1)
    return left


def next_point(
    fit: Fit,
    predictor: Callable[[Sequence[CalibrationPoint]], Callable[[Floats], Floats]],
    collective: str,
    wirings: Sequence[Wiring],
    target: CalibrationPoint,
) -> NextPoint:
    """Find the measurement of a collective that leaves the least variance in ``target``.

    ``predictor`` makes the function from constants to the times of some points.
    """
    candidates = [
        CalibrationPoint(collective, nbytes, wiring) for wiring in wirings for nbytes in SIZES
    ]
    slopes = jacobian(predictor(candidates), fit.values)
    goal = jacobian(predictor([target]), fit.values)
    left = variance_left(fit.covariance, goal, slopes[:, None, :], fit.noise)
    best = int(np.argmin(left))
    before = float(np.sum(product(goal, fit.covariance) * goal))
    chosen, w = candidates[best], target.wiring
    target_words = f"{target.collective} of {format_quantity(target.nbytes, 'data size')}"
    return NextPoint(
        collective=collective,
        num_nodes=chosen.wiring.num_nodes,
        world_size=chosen.wiring.world_size,
        nbytes=chosen.nbytes,
        target=f"{target_words} between {w.world_size} ranks on {w.num_nodes} nodes",
        before=NORMAL_90 * float(np.sqrt(before)),
        after=NORMAL_90 * float(np.sqrt(left[best])),
    )


# Measurements for a step --------------------------------------------------------------------------

STEP = 0.01  # change of a constant's logarithm for derivatives

NEARLY = 1.05
"""Among measurements within this factor of the least interval, that on the fewest ranks is
proposed."""

WORTH = 0.98  # largest remaining share of an interval that is worth a proposal
ALL_UP_TO = 8  # up to here every number of nodes is tried, beyond it each doubled one

COLLECTIVE = "all_reduce"


class Candidate(NamedTuple):
    """A proposal without its ``after``, and the derivatives of its times by the constants.

    ``slopes`` are those of the logarithms, shape `(num_times, num_constants)`; ``noise`` is the
    relative standard deviation of one time.
    """

    proposal: Proposal
    slopes: Floats
    noise: float


def wanted_step(path: Path, entry: str, fit: Fit, prefix: str = "") -> WantedStep:
    """Compute the interval of a step with fitted constants, and propose measurements to narrow it.

    The scenario is simulated on the calibrated machine, ``entry`` in YAML; its own keys win.
    ``prefix`` leads the constants' keys in a scenario.

    Raises
    ------
    ScenarioError
        If the scenario is wrong, or lacks the key of a constant.
    """
    with LedBy("--for "):
        file = find(path)
    with TemporaryDirectory() as folder:
        machine = Path(folder) / "machine.yaml"
        machine.write_text(entry, encoding="utf-8")
        keys = [f"{prefix}{constant.key}" for constant in fit.constants]
        study = _Study(file, machine, fit, keys)
        target = study.scenario({})
        goal = study.step_slopes(target)
        candidates = [*_tables(study, target), *_steps(study, target)]
    before = float(np.sum(product(goal, fit.covariance) * goal))
    cluster = target.cluster
    return WantedStep(
        target=f"step of {target.name} on {cluster.world_size} ranks",
        before=NORMAL_90 * float(np.sqrt(before)),
        proposals=tuple(best(candidates, fit.covariance, goal)),
    )


def best(candidates: Sequence[Candidate], covariance: Floats, goal: Floats) -> list[Proposal]:
    """The best candidate of each kind, best first; without those that hardly narrow the interval.

    ``covariance`` and ``goal`` are as for `variance_left`.
    """
    before = float(np.sum(product(goal, covariance) * goal))
    groups = grouped(((c.proposal.kind, len(c.slopes), c.noise), c) for c in candidates)
    by_kind: dict[str, list[Proposal]] = {}
    for (kind, _, noise), some in groups.items():
        slopes = np.stack([candidate.slopes for candidate in some])
        left = variance_left(covariance, goal, slopes, noise)
        for candidate, variance in zip(some, left, strict=True):
            if variance < WORTH**2 * before:
                after = NORMAL_90 * float(np.sqrt(variance))
                by_kind.setdefault(kind, []).append(replace(candidate.proposal, after=after))
    chosen = []
    for proposals in by_kind.values():
        least = min(proposal.after for proposal in proposals)
        near = [proposal for proposal in proposals if proposal.after <= NEARLY * least]
        chosen.append(min(near, key=lambda proposal: (proposal.world_size, proposal.after)))
    return sorted(chosen, key=lambda proposal: proposal.after)


class _Study:
    """The scenario on the calibrated machine, at any number of ranks."""

    def __init__(self, file: Path, machine: Path, fit: Fit, keys: Sequence[str]) -> None:
        self.file, self.machine, self.fit = file, machine, fit
        self.constants = [
            replace(constant, key=key) for constant, key in zip(fit.constants, keys, strict=True)
        ]
        self.largest = 1

    def scenario(self, chosen: dict[str, object]) -> Scenario:
        with LedBy("--for "):
            raw = as_written(self.file, {**chosen, "cluster.machine": str(self.machine)})
        raw.pop("sweep", None)
        raw["numerics"] = False
        with LedBy(f"--for {self.file}: "):
            made = shortened(checked(raw, self.file.parent, self.largest))
        self.largest = max(self.largest, made.cluster.world_size)
        return made

    def step_slopes(self, point: Scenario) -> Floats:
        """Derivatives of a step's time by the constants, shape `(1, num_constants)`."""
        raw, middle = point.resolved(), self._with(point, point.resolved(), 0.0, 0)
        ends = [
            self._with(point, raw, sign * STEP, index)
            for sign in (1, -1)
            for index in range(len(self.constants))
        ]
        times = np.log(Stopwatch(middle).step_times(ends)).reshape(2, -1)
        return np.asarray((times[0] - times[1]) / (2 * STEP))[None, :]

    def table_slopes(self, point: Scenario) -> Floats:
        """Derivatives of the times of `SIZES` by the constants, `(num_sizes, num_constants)`."""
        raw = point.resolved()
        columns = []
        for index in range(len(self.constants)):
            both = []
            for sign in (1, -1):
                clock = clock_of(self._with(point, raw, sign * STEP, index), COLLECTIVE)
                both.append(np.log([clock(int(nbytes)) for nbytes in SIZES]))
            columns.append((both[0] - both[1]) / (2 * STEP))
        return np.stack(columns, axis=1)

    def _with(self, point: Scenario, raw: dict[str, object], change: float, index: int) -> Scenario:
        """A point with the fitted constants, of which one is changed."""
        values = self.fit.values.copy()
        values[index] *= exp(change)
        return with_values(point, raw, written(self.constants, values), f"--for {self.file}")


def _tables(study: _Study, target: Scenario) -> Iterator[Candidate]:
    """Yield tables of two sizes, on the step's number of nodes or fewer."""
    cluster, noise = target.cluster, max(study.fit.noise, NOISE)
    for nodes in _counts(cluster.num_nodes):
        n = nodes * cluster.local_size
        if n < 2:
            continue
        made = with_values(target, target.resolved(), {"cluster.world_size": n})
        slopes = study.table_slopes(made)
        for pair in combinations(range(len(SIZES)), 2):
            sizes = tuple(int(SIZES[i]) for i in pair)
            first, second = (format_quantity(size, "data size") for size in sizes)
            where = f"{nodes} node{'s' * (nodes > 1)} of {cluster.local_size}"
            title = f"a table of {COLLECTIVE} at {first} and {second} on {where}"
            yield Candidate(Proposal("table", title, n, sizes, 0.0), slopes[list(pair)], noise)


def _steps(study: _Study, target: Scenario) -> Iterator[Candidate]:
    """Yield steps of the scenario on fewer ranks."""
    cluster = target.cluster
    inside = [n for n in _counts(cluster.local_size) if n > 1]
    whole = [nodes * cluster.local_size for nodes in _counts(cluster.num_nodes)]
    for n in sorted({*inside, *whole} - {1, cluster.world_size}):
        try:
            point = study.scenario({"cluster.world_size": n})
        except ScenarioError:
            continue  # batch or placement is impossible on so few ranks
        proposal = Proposal("step", f"the step on {n} ranks", n, (), 0.0)
        yield Candidate(proposal, study.step_slopes(point), study.fit.noise)


def _counts(most: int) -> list[int]:
    """Every number up to `ALL_UP_TO`, then doubled ones, and the last."""
    counts = [*range(1, min(most, ALL_UP_TO) + 1)]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]
