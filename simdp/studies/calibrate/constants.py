"""Which constants of NCCL's formula a set of measured points can speak of, the weightiest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, log

import numpy as np

from simdp.arrays import Floats
from simdp.collectives.costs.nccl import PROTOCOLS, NcclCost
from simdp.collectives.costs.pool import PAYLOAD, pooled
from simdp.collectives.costs.wiring import Wiring
from simdp.studies.calibrate.candidates import Point
from simdp.studies.calibrate.fit import Constant

REACHED = 0.15
"""Spread of the share that Simple gets of a bandwidth that was reached; of a datasheet's, it is
that of the sites of its class (`simdp.collectives.costs.pool`)."""

TREES = 0.3
"""Spread of the bandwidth of trees over that of rings."""

FIRM = 0.02
"""Standard error of what is known for certain: a fit has no use for more."""

HOPS, SHARES = 0.5, 0.4
"""Spread of hops over clusters, and of the shares that LL and LL128 get."""

SPREADS = {"launch": 0.6, "ramp": 1.0, "nvls_hop": 0.5}
"""The same of other times."""

TIMES = "launch", "ramp", "nvls_hop"

ALONE = Wiring(1, 1, 1, 0.0, inf, 0.0, inf, 0)
"""Stands for a place at which no point is."""


def nccl_constants(
    cost: NcclCost, points: Sequence[Point], is_given: bool = False
) -> list[Constant]:
    """List the constants that bear on some points.

    Parameters
    ----------
    cost : NcclCost
        Its constants are the typical values: what NVIDIA publishes, unless they were given.
    points : sequence of Point
    is_given : bool
        Whether the slowest stage's bandwidth is a datasheet's; else it is the best measured one.

    Returns
    -------
    list of Constant
        The weightiest first. What is given as 0 is off, and none of them.
    """
    inside = any(point.wiring.local_size > 1 for point in points)
    across = any(point.wiring.num_nodes > 1 for point in points)
    places = ["inter"] * across + ["intra"] * inside
    typical = typical_values(cost, points)
    protocols = [name for name in ("simple", "ll", "ll128") if name in cost.protocols]
    keys = [f"efficiency.{places[0]}.{protocols[0]}", "launch", "ramp"]
    keys += [f"hop.{places[0]}.{name}" for name in protocols]
    keys += [f"efficiency.{places[0]}.{name}" for name in protocols[1:]]
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


def _spread(cost: NcclCost, points: Sequence[Point], place: str) -> float:
    """How far sites of a class are apart in what they get of a bandwidth."""
    wiring = _wiring(points, place)
    if place == "intra":
        return pooled("peer", cost.peer or wiring.peer, "share").spread
    network = cost.network or wiring.network
    return pooled("network", network, "flow" if network == "tcp" else "share").spread


def _wiring(points: Sequence[Point], place: str) -> Wiring:
    """How the ranks of a point are joined that uses a place."""
    across = place == "inter"
    found = (
        p.wiring for p in points if (p.wiring.num_nodes if across else p.wiring.local_size) > 1
    )
    return next(found, ALONE)


def restraints(
    constants: Sequence[Constant], base: Mapping[str, float]
) -> Callable[[Floats], Floats]:
    """How far LL and LL128 get more than flags leave them of what Simple gets.

    Parameters
    ----------
    constants : sequence of Constant
        What is fitted.
    base : mapping
        Values of what is not.

    Returns
    -------
    callable
        From the constants' values to standard errors, 0 where there is room.
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


def typical_values(cost: NcclCost, points: Sequence[Point]) -> dict[str, float]:
    """Every constant's value before a fit, by dotted key."""
    values = {
        key: getattr(cost, key)
        for key in ("launch", "ramp", "tree_efficiency", "nvls_hop", "nvls_efficiency")
    }
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
    """Bounds are wide: a thousand times in time, and twice a cable in bandwidth."""
    if key in TIMES or key.startswith("hop"):
        spread = SPREADS.get(key, HOPS)
        return Constant(key, "time", typical, typical / 1000, typical * 1000, spread)
    if key == "tree_efficiency":
        return Constant(key, None, typical, 0.1, 1.5, TREES)
    most = next((PAYLOAD[name] for name in ("ll", "ll128") if key.endswith(f".{name}")), 2.0)
    return Constant(key, None, min(typical, most), 1e-3, most, spread)
