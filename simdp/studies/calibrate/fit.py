"""Fits the constants of NCCL's model to measurements.

Constants are positive. Their logarithms are fitted to the logarithms of the times, so that relative
errors count. Each has a typical value, such as the vendor's, and a spread around it. Constants that
the data do not determine keep their typical value, and are reported as such.

Times are those of `simdp.collectives.costs.nccl.NcclCost.total`, on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, product
from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import (
    DEEP_TREES,
    PAYLOAD,
    PROTOCOLS,
    STEPS_FROM,
    TREE_CHUNK,
    TREE_OVER_RING,
    NcclCost,
    domain_share,
    pooled,
)
from simdp.results.calibration import FittedConstant
from simdp.rng import stream
from simdp.studies.intervals import NORMAL_90

# Fit ----------------------------------------------------------------------------------------------

NUM_STARTS = 8
"""Starts of the search: the minimum over protocols has kinks, at which a single search may stop."""

NOISE = 0.03
"""Relative error from which a point counts linearly, not squared: nccl-tests repeat within it."""

LEAST_NOISE = 0.01  # least noise of a fit: runs of nccl-tests differ by a percent between days
WELL_KNOWN = 0.1  # relative standard error below which a constant counts as determined


@dataclass(frozen=True)
class Constant:
    """A constant to fit: dotted key, dimension (None for a plain number) and bounds above 0.

    ``typical`` is its value without data, ``spread`` the standard error of its logarithm around
    that; 1 is a factor of e.
    """

    key: str
    dimension: str | None
    typical: float
    low: float
    high: float
    spread: float = 1.0


@dataclass(frozen=True)
class Fit:
    """Result of a fit."""

    constants: tuple[Constant, ...]
    """Fitted constants and their best values; shape `(num_constants,)`."""
    values: Floats
    """Fitted constants and their best values; shape `(num_constants,)`."""
    predicted: Floats
    """Times with these values [s]; shape `(num_points,)`."""
    errors: Floats
    """Predicted over measured, less 1; shape `(num_points,)`."""
    noise: float
    """Root mean square of the logarithmic errors, at least `LEAST_NOISE`."""
    jacobian: Floats
    """Derivatives of the times' logarithms by the constants' logarithms; shape `(num_points,
    num_constants)`."""
    covariance: Floats
    """Of the logarithms of the constants; shape `(num_constants, num_constants)`."""

    @property
    def residual(self) -> float:
        """Root mean square of the relative errors."""
        return float(np.sqrt(np.mean(self.errors**2)))

    def interval(self, index: int) -> tuple[float, float]:
        """The 90 % interval of a constant, cut off at its bounds."""
        constant = self.constants[index]
        reach = exp(min(NORMAL_90 * float(np.sqrt(self.covariance[index, index])), 50.0))
        value = float(self.values[index])
        return max(value / reach, constant.low), min(value * reach, constant.high)

    def undetermined(self) -> list[str]:
        """Keys that the data do not determine.

        Their interval hits a bound; or their standard error is above a tenth, and above half of
        that without data.
        """
        keys = []
        for index, constant in enumerate(self.constants):
            low, high = self.interval(index)
            error = float(np.sqrt(self.covariance[index, index]))
            bounded = low <= constant.low or high >= constant.high
            if bounded or error > max(constant.spread / 2, WELL_KNOWN):
                keys.append(constant.key)
        return keys

    def listed(self, write: Callable[[Constant, float], object]) -> tuple[FittedConstant, ...]:
        """The constants with values and intervals as ``write`` gives them."""
        opened, listed = self.undetermined(), []
        for index, constant in enumerate(self.constants):
            ends = (float(self.values[index]), *self.interval(index))
            value, low, high = (str(write(constant, end)) for end in ends)
            known = constant.key not in opened
            listed.append(FittedConstant(constant.key, value, low, high, known))
        return tuple(listed)


def fit(
    predict: Callable[[Floats], Floats],
    measured: Floats,
    constants: Sequence[Constant],
    num_starts: int = NUM_STARTS,
    restraints: Callable[[Floats], Floats] | None = None,
    start: Floats | None = None,
    batched: bool = False,
) -> Fit:
    """Fit constants to measured times [s].

    Parameters
    ----------
    predict : callable
        Times [s] from the constants' values, in their order.
    num_starts : int
        Number of searches, of which the best counts; the first starts from the typical values.
    restraints : callable, optional
        Violations of constraints between the constants' values, in standard errors.
    start : ndarray, shape `(num_constants,)`, optional
        Start of the first search, in place of the typical values.
    batched : bool
        Whether ``predict`` takes several sets of values at once, one in each row.
    """
    typical = np.array([log(constant.typical) for constant in constants])
    spread = np.array([constant.spread for constant in constants])
    target = np.log(measured)

    def residuals(x: Floats) -> Floats:
        misses = (np.log(predict(np.exp(x))) - target) / NOISE
        known = [misses, (x - typical) / spread]
        known += [] if restraints is None else [restraints(np.exp(x))]
        return np.concatenate(known, axis=-1)

    first = typical if start is None else np.log(start)
    slopes_at = partial(_slopes, residuals) if batched and restraints is None else None
    x = _search(residuals, constants, typical, first, num_starts, slopes_at)
    predicted = predict(np.exp(x))
    misses = np.log(predicted) - target
    freedom = max(len(measured) - len(constants), 1)
    noise = max(float(np.sqrt(np.sum(misses**2) / freedom)), LEAST_NOISE)
    slopes = jacobian(predict, np.exp(x))
    information = product(slopes.T, slopes) / noise**2 + np.diag(1 / spread**2)
    return Fit(
        constants=tuple(constants),
        values=np.exp(x),
        predicted=predicted,
        errors=predicted / measured - 1,
        noise=noise,
        jacobian=slopes,
        covariance=np.asarray(np.linalg.inv(information), dtype=np.float64),
    )


def jacobian(predict: Callable[[Floats], Floats], values: Floats, step: float = 1e-4) -> Floats:
    """Central differences of log times by log constants, `(num_points, num_constants)`."""
    columns = []
    for index in range(len(values)):
        factor = np.ones(len(values))
        factor[index] = exp(step)
        change = np.log(predict(values * factor)) - np.log(predict(values / factor))
        columns.append(change / (2 * step))
    return np.stack(columns, axis=1)


def _slopes(residuals: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Derivatives of residuals in one batch: `(num_residuals, num_constants)`."""
    step = 1e-6
    residuals_near = residuals(x + step * np.vstack([np.zeros(len(x)), np.eye(len(x))]))
    slopes: Floats = (residuals_near[1:] - residuals_near[0]).T / step
    return slopes


def _search(
    residuals: Callable[[Floats], Floats],
    constants: Sequence[Constant],
    typical: Floats,
    first: Floats,
    num_starts: int,
    slopes_at: Callable[[Floats], Floats] | None,
) -> Floats:
    """The best of several searches: one from ``first``, others from around the typical values."""
    from scipy.optimize import least_squares

    low = np.array([log(constant.low) for constant in constants])
    high = np.array([log(constant.high) for constant in constants])
    draws = stream(0, "calibrate").normal(size=(num_starts, len(constants)))
    starts = typical + 0.7 * np.array([constant.spread for constant in constants]) * draws
    starts[0] = first
    best: Any = None
    for start in starts:
        inside = low + 1e-6 * (high - low), high - 1e-6 * (high - low)
        start = np.clip(start, *inside)
        # Linear beyond the noise, since other jobs may have disturbed some rows.
        solution = least_squares(
            residuals,
            start,
            bounds=(low, high),
            loss="soft_l1",
            max_nfev=200,
            jac=slopes_at or "2-point",
        )
        if best is None or solution.cost < best.cost:
            best = solution
    return np.asarray(best.x)


class CalibrationPoint(NamedTuple):
    """A collective, its buffer [bytes] and wiring; its time was measured, or is predicted."""

    collective: str
    nbytes: float
    wiring: Wiring


class Candidates:
    """Every algorithm and protocol for many points of two ranks or more.

    ``cost`` has the constants that are not fitted.
    """

    def __init__(self, cost: NcclCost, points: Sequence[CalibrationPoint]) -> None:
        self.cost = cost
        rows: list[tuple[float, ...]] = []
        starts = []
        for point in points:
            starts.append(len(rows))
            for algorithm, protocol, way in cost.ways(point.collective, point.wiring):
                w = point.wiring
                rows.append(
                    (
                        PROTOCOLS.index(protocol),
                        algorithm == "tree",
                        algorithm == "nvls",
                        way.intra_hops,
                        way.inter_hops,
                        point.nbytes * way.intra_sent / w.intra_bandwidth,
                        point.nbytes * way.inter_sent / w.inter_bandwidth,
                        cost.host_share(w) / w.intra_bandwidth if w.local_size > 1 else inf,
                        cost.flow_share(w, protocol) / w.inter_bandwidth
                        if w.num_nodes > 1
                        else inf,
                        max(w.num_nodes / 2, 1.0),
                        domain_share(w),
                        way.ring_steps * (point.nbytes >= STEPS_FROM),
                        way.deep_hops * (protocol != "ll"),
                        min(point.nbytes / TREE_CHUNK, 1.0),
                    )
                )
        self.starts = np.array(starts)
        table = np.array(rows).T
        self.protocol = table[0].astype(np.int64)
        self.tree, self.nvls = table[1] > 0, table[2] > 0
        self.hops, self.wires, self.limits = table[3:5], table[5:7], table[7:9]
        self.pairs, self.domains = table[9:11]
        self.ring_steps, self.deep_hops, self.fills = table[11:14]

    def seconds(self, constants: Mapping[str, float]) -> Floats:
        """Times of the points, `(num_points,)`; missing keys are those of the cost."""
        cost, protocol = self.cost, self.protocol
        launch = constants.get("launch", cost.launch) + cost.before() - cost.launch
        base = np.array([getattr(cost.base, name) for name in PROTOCOLS])[protocol]
        latency = np.zeros(len(protocol))
        trees = constants.get("tree_efficiency", cost.tree_efficiency)
        trees = np.maximum(trees, DEEP_TREES * (self.deep_hops > 0))
        share = np.where(self.tree, trees, 1.0)
        stages = []
        for index, where in enumerate(("intra", "inter")):
            hop, efficiency = (
                np.array([constants[f"{what}.{where}.{name}"] for name in PROTOCOLS])[protocol]
                for what in ("hop", "efficiency")
            )
            ratio = np.array([TREE_OVER_RING[where][name] for name in PROTOCOLS])[protocol]
            hop = np.where(self.tree, hop * ratio, hop)
            limit = self.limits[index]
            if where == "intra":
                hop = np.where(self.nvls, constants.get("nvls_hop", cost.nvls_hop), hop)
                nvls = constants.get("nvls_efficiency", cost.nvls_efficiency)
                efficiency = np.where(self.nvls, nvls * self.domains, efficiency)
                limit = np.where(self.nvls, inf, limit)
            else:
                exponent = constants.get("nodes_exponent", cost.nodes_exponent)
                efficiency = efficiency * self.pairs**-exponent
                further = np.maximum(cost.tree_step * self.fills - hop, 0.0)
            latency = latency + self.hops[index] * hop
            stages.append(self.wires[index] / (share * np.minimum(efficiency, limit)))
        steps = [
            constants.get(f"ring_step.{name}", getattr(cost.ring_step, name)) for name in PROTOCOLS
        ]
        latency = np.maximum(latency, self.ring_steps * np.array(steps)[protocol])
        latency = latency + self.deep_hops * further
        if cost.stages == "summed":  # in this order: a fit's last bits depend on it
            stages = [stages[0] + stages[1], np.zeros(len(protocol))]
        ramp, functions = constants.get("ramp", cost.ramp), (np.maximum, np.hypot, np.sqrt)
        seconds = cost.total(launch, base, latency, stages, ramp, functions)
        return np.minimum.reduceat(seconds, self.starts)


# Constants of NCCL --------------------------------------------------------------------------------

REACHED = 0.15
"""Spread of Simple's share of a measured bandwidth; of a data sheet's, that of the sites of its
class (`simdp.collectives.costs.nccl`)."""

TREES = 0.3  # spread of the bandwidth of trees over that of rings
FIRM = 0.02  # standard error of known constraints: smaller would not change a fit

LOSS = 0.155
"""Exponent of the bandwidth that sockets lose with the number of nodes, before a fit: Polaris's."""

HOPS, SHARES = 0.5, 0.4  # spread of hops over clusters, and of the shares that LL and LL128 get

SPREADS = {
    "launch": 0.6,
    "ramp": 1.0,
    "nvls_hop": 0.5,
    "ring_step.ll": 0.15,
    "ring_step.ll128": 0.7,
    "ring_step.simple": 0.7,
}
"""Spread of other times; ring steps of LL were alike on two networks, those of others were not."""

TIMES = "launch", "ramp", "nvls_hop"

ALONE = Wiring(1, 1, 1, 0.0, inf, 0.0, inf, 0)  # wiring of a place without points


def nccl_constants(
    cost: NcclCost, points: Sequence[CalibrationPoint], is_given: bool = False
) -> list[Constant]:
    """List the constants that affect some points, the most important first.

    Typical values are those of ``cost``. Constants of 0 are off, and left out. ``is_given``: the
    slowest stage's bandwidth is a data sheet's; else it is the best measured one.
    """
    inside = any(point.wiring.local_size > 1 for point in points)
    across = any(point.wiring.num_nodes > 1 for point in points)
    places = ["inter"] * across + ["intra"] * inside
    typical = typical_values(cost, points)
    protocols = [name for name in ("simple", "ll", "ll128") if name in cost.protocols]
    keys = [f"efficiency.{places[0]}.{protocols[0]}", "launch", "ramp"]
    keys += [f"hop.{places[0]}.{name}" for name in protocols]
    keys += [f"efficiency.{places[0]}.{name}" for name in protocols[1:]]
    if _paces(points):
        keys += [f"ring_step.{name}" for name in protocols]
    keys += ["nodes_exponent"] * _loses_with_nodes(cost, points)
    reducing = any(point.collective in ("all_reduce", "barrier") for point in points)
    keys += ["tree_efficiency"] * (reducing and across and "tree" in cost.algorithms)
    keys += ["nvls_efficiency", "nvls_hop"] * (inside and "nvls" in cost.algorithms)
    for place in places[1:]:
        keys += [f"{what}.{place}.{name}" for name in protocols for what in ("efficiency", "hop")]
    spreads = {keys[0]: REACHED}
    if is_given:
        spreads = {f"efficiency.{place}.simple": _spread(cost, points, place) for place in places}
        spreads.setdefault(keys[0], spreads[f"efficiency.{places[0]}.simple"])
    free = [key for key in keys if typical[key]]
    return [_constant(key, typical[key], spreads.get(key, SHARES)) for key in free]


def _spread(cost: NcclCost, points: Sequence[CalibrationPoint], place: str) -> float:
    """Spread of a bandwidth's share over the sites of a class."""
    wiring = _wiring(points, place)
    if place == "intra":
        return pooled("peer", cost.peer or wiring.peer, "share").spread
    network = cost.network or wiring.network
    return pooled("network", network, "flow" if network == "tcp" else "share").spread


def _paces(points: Sequence[CalibrationPoint]) -> bool:
    """Whether points have rings of more than two nodes."""
    rings = ("all_gather", "all_reduce", "reduce_scatter")
    return any(p.wiring.num_nodes > 2 and p.collective in rings for p in points)


def _loses_with_nodes(cost: NcclCost, points: Sequence[CalibrationPoint]) -> bool:
    """Whether points tell how much bandwidth sockets lose with the number of nodes."""
    several = {p.wiring.num_nodes for p in points if p.wiring.num_nodes > 1}
    return len(several) > 1 and (cost.network or _wiring(points, "inter").network) == "tcp"


def _wiring(points: Sequence[CalibrationPoint], place: str) -> Wiring:
    """Wiring of the first point that uses a place."""
    across = place == "inter"
    wirings = (
        p.wiring for p in points if (p.wiring.num_nodes if across else p.wiring.local_size) > 1
    )
    return next(wirings, ALONE)


def restraints(
    constants: Sequence[Constant], base: Mapping[str, float]
) -> Callable[[Floats], Floats]:
    """Make the constraint that LL and LL128 get at most their payload's part of Simple's share.

    Maps the fitted constants' values to violations in standard errors, 0 where there is none;
    ``base`` has the values of all others.
    """
    keys = [constant.key for constant in constants]

    def broken(values: Floats) -> Floats:
        now = {**base, **dict(zip(keys, values, strict=True))}
        excess = [
            log(now[f"efficiency.{place}.{name}"] / now[f"efficiency.{place}.simple"] / share)
            for place in ("intra", "inter")
            for name, share in PAYLOAD.items()
            if name != "simple"
        ]
        return np.maximum(excess, 0.0) / FIRM

    return broken


def typical_values(cost: NcclCost, points: Sequence[CalibrationPoint]) -> dict[str, float]:
    """Every constant's value before a fit, by dotted key."""
    values = {
        key: getattr(cost, key)
        for key in ("launch", "ramp", "tree_efficiency", "nvls_hop", "nvls_efficiency")
    }
    for name in PROTOCOLS:
        values[f"ring_step.{name}"] = getattr(cost.ring_step, name)
    values["nodes_exponent"] = cost.nodes_exponent
    if cost.nodes_exponent == 0 and _loses_with_nodes(cost, points):
        values["nodes_exponent"] = LOSS
    alphas = {
        "intra": max((point.wiring.intra_alpha for point in points), default=0.0),
        "inter": max((point.wiring.inter_alpha for point in points), default=0.0),
    }
    for where, alpha in alphas.items():
        for name in PROTOCOLS:
            values[f"hop.{where}.{name}"] = cost.hop_time(where, "ring", name, alpha)
            values[f"efficiency.{where}.{name}"] = cost.share(where, name, _wiring(points, where))
    return values


def _constant(key: str, typical: float, spread: float) -> Constant:
    """Make a constant with wide bounds: a thousandfold in time, twice the link in bandwidth."""
    if key in TIMES or key.startswith(("hop", "ring_step")):
        spread = SPREADS.get(key, HOPS)
        return Constant(key, "time", typical, typical / 1000, typical * 1000, spread)
    if key == "nodes_exponent":
        return Constant(key, None, typical, 1e-3, 1.0, 1.0)
    if key == "tree_efficiency":
        return Constant(key, None, typical, 0.1, 1.5, TREES)
    most = next((PAYLOAD[name] for name in ("ll", "ll128") if key.endswith(f".{name}")), 2.0)
    return Constant(key, None, min(typical, most), 1e-3, most, spread)
