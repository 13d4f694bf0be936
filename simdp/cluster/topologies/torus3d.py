"""3-D torus: rings along 3 dimensions."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.cluster.topologies.torus import TorusTopology


class Torus3DTopology(TorusTopology):
    """Rings along 3 dimensions; a route goes the shorter way along each, the first one first."""

    kind: Literal["torus3d"] = "torus3d"

    num_dims: ClassVar[int] = 3
