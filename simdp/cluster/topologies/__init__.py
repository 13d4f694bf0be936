"""Topologies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.topologies.base import Topology
from simdp.cluster.topologies.full_mesh import FullMeshTopology
from simdp.cluster.topologies.ring import RingTopology
from simdp.cluster.topologies.switch import SwitchTopology
from simdp.spec import one_of

TOPOLOGIES: dict[str, type[Topology]] = {
    "full_mesh": FullMeshTopology,
    "ring": RingTopology,
    "switch": SwitchTopology,
}
AnyTopology = Annotated[Topology, one_of("topology", TOPOLOGIES, default="switch")]

__all__ = ["TOPOLOGIES", "AnyTopology", "Topology"]
