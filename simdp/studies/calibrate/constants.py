"""Which constants of NCCL's formula a set of measured points can speak of, the weightiest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log

import numpy as np

from simdp.arrays import Floats
from simdp.collectives.costs.nccl import PROTOCOLS, NcclCost
from simdp.studies.calibrate.candidates import Point
from simdp.studies.calibrate.fit import Constant

REACHED, GIVEN = 0.15, 0.3
"""Spread of the share of the slowest stage that Simple gets: of a bandwidth that was reached, and
of a datasheet's, of which 100 Gb/s fabrics reach 0.95 and 200 Gb/s ones 0.72."""

TREES = 0.3
"""Spread of the bandwidth of trees over that of rings."""

PAYLOAD = {"ll": 0.5, "ll128": 120 / 128}
"""What these protocols can carry at most: the rest are flags."""

FIRM = 0.02
"""Standard error of what is known for certain: a fit has no use for more."""

TIMES = "launch", "ramp", "nvls_hop"


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
    spread = GIVEN if is_given else REACHED
    free = [key for key in keys if typical[key]]
    return [_constant(key, typical[key], spread if key == keys[0] else 1.0) for key in free]


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
            values[f"efficiency.{where}.{name}"] = getattr(getattr(cost.efficiency, where), name)
    return values


def _constant(key: str, typical: float, spread: float) -> Constant:
    """Bounds are wide: a thousand times in time, and twice a cable in bandwidth."""
    if key in TIMES or key.startswith("hop"):
        return Constant(key, "time", typical, typical / 1000, typical * 1000)
    if key == "tree_efficiency":
        return Constant(key, None, typical, 0.1, 1.5, TREES)
    most = next((share for name, share in PAYLOAD.items() if key.endswith(f".{name}")), 2.0)
    return Constant(key, None, min(typical, most), 1e-3, most, spread)
