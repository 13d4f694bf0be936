"""NCCL's formula over many measured points at once, for a fit that evaluates it often.

The same arithmetic as `simdp.collectives.costs.nccl.NcclCost`, on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.collectives.costs.nccl import PROTOCOLS, TREE_OVER_RING, NcclCost
from simdp.collectives.costs.wiring import Wiring


class Point(NamedTuple):
    """A measured time, or one to be predicted.

    Attributes
    ----------
    collective : str
        A key of `simdp.collectives.costs.ways.WAYS`.
    nbytes : float
        Size of the buffer [bytes].
    wiring : Wiring
        Between which ranks.
    """

    collective: str
    nbytes: float
    wiring: Wiring


class Candidates:
    """Every algorithm and protocol that could serve each of many points.

    Parameters
    ----------
    cost : NcclCost
        Brings the constants that are not fitted.
    points : sequence of Point
        Of two ranks or more.
    """

    def __init__(self, cost: NcclCost, points: Sequence[Point]) -> None:
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
                    )
                )
        self.starts = np.array(starts)
        table = np.array(rows).T
        self.protocol = table[0].astype(np.int64)
        self.tree, self.nvls = table[1] > 0, table[2] > 0
        self.hops, self.wires, self.limits = table[3:5], table[5:7], table[7:9]

    def seconds(self, constants: Mapping[str, float]) -> Floats:
        """Times of the points; keys that are not given are those of the cost, `(num_points,)`."""
        cost, protocol = self.cost, self.protocol
        launch = constants.get("launch", cost.launch) + cost.before() - cost.launch
        base = np.array([getattr(cost.base, name) for name in PROTOCOLS])[protocol]
        latency = np.zeros(len(protocol))
        share = np.where(self.tree, constants.get("tree_efficiency", cost.tree_efficiency), 1.0)
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
                efficiency = np.where(self.nvls, nvls, efficiency)
                limit = np.where(self.nvls, inf, limit)
            latency = latency + self.hops[index] * hop
            stages.append(self.wires[index] / (share * np.minimum(efficiency, limit)))
        if cost.stages == "summed":
            wire = stages[0] + stages[1]
            both = latency + wire
        else:
            wire = np.maximum(*stages)
            both = np.hypot(latency, wire)
        seconds = launch + base + both + 2 * np.sqrt(constants.get("ramp", cost.ramp) * wire)
        found: Floats = np.minimum.reduceat(seconds, self.starts)
        return found
