"""Topologies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.topologies.base import Topology
from simdp.cluster.topologies.cube_mesh import CubeMeshTopology
from simdp.cluster.topologies.custom import CustomTopology
from simdp.cluster.topologies.dragonfly import DragonflyTopology
from simdp.cluster.topologies.fat_tree import FatTreeTopology
from simdp.cluster.topologies.full_mesh import FullMeshTopology
from simdp.cluster.topologies.nvidia_smi import NvidiaSmiTopology
from simdp.cluster.topologies.pcie_tree import PcieTreeTopology
from simdp.cluster.topologies.rail_optimised import RailOptimisedTopology
from simdp.cluster.topologies.ring import RingTopology
from simdp.cluster.topologies.switch import SwitchTopology
from simdp.cluster.topologies.torus2d import Torus2DTopology
from simdp.cluster.topologies.torus3d import Torus3DTopology
from simdp.spec import one_of

TOPOLOGIES: dict[str, type[Topology]] = {
    "cube_mesh": CubeMeshTopology,
    "custom": CustomTopology,
    "dragonfly": DragonflyTopology,
    "fat_tree": FatTreeTopology,
    "full_mesh": FullMeshTopology,
    "nvidia_smi": NvidiaSmiTopology,
    "pcie_tree": PcieTreeTopology,
    "rail_optimised": RailOptimisedTopology,
    "ring": RingTopology,
    "switch": SwitchTopology,
    "torus2d": Torus2DTopology,
    "torus3d": Torus3DTopology,
}
AnyTopology = Annotated[Topology, one_of("topology", TOPOLOGIES, default="switch")]

__all__ = ["TOPOLOGIES", "AnyTopology", "Topology"]
