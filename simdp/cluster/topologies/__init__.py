"""Topologies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.topologies.base import Topology
from simdp.family import Family
from simdp.spec import one_of

TOPOLOGIES: Family[Topology] = Family(
    "topologies",
    Topology,
    __name__,
    {
        "cube_mesh": "cube_mesh:CubeMeshTopology",
        "custom": "custom:CustomTopology",
        "dragonfly": "dragonfly:DragonflyTopology",
        "fat_tree": "fat_tree:FatTreeTopology",
        "full_mesh": "full_mesh:FullMeshTopology",
        "nvidia_smi": "nvidia_smi:NvidiaSmiTopology",
        "pcie_tree": "pcie_tree:PcieTreeTopology",
        "rail_optimised": "rail_optimised:RailOptimisedTopology",
        "ring": "ring:RingTopology",
        "switch": "switch:SwitchTopology",
        "torus2d": "torus2d:Torus2DTopology",
        "torus3d": "torus3d:Torus3DTopology",
    },
)
ALSO_CALLED = {
    "fully_connected": {"kind": "full_mesh"},
    "hybrid_cube_mesh": {"kind": "cube_mesh"},
    "nvswitch": {"kind": "switch"},
    "rail_optimized": {"kind": "rail_optimised"},
}
"""Other names of these."""

AnyTopology = Annotated[
    Topology, one_of("topology", TOPOLOGIES, default="switch", presets=ALSO_CALLED)
]

__all__ = ["TOPOLOGIES", "AnyTopology", "Topology"]
