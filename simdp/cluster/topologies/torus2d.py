"""2-D torus: rings along 2 dimensions."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.cluster.topologies.torus import TorusTopology


class Torus2DTopology(TorusTopology):
    """Rings along 2 dimensions; a route goes the shorter way along each, the first one first."""

    kind: Literal["torus2d"] = "torus2d"

    num_dims: ClassVar[int] = 2
