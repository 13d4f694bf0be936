"""Table of topologies by kind, the one place of registration."""

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
        "cube_mesh": "direct:CubeMeshTopology",
        "custom": "base:CustomTopology",
        "dragonfly": "fabrics:DragonflyTopology",
        "fat_tree": "fabrics:FatTreeTopology",
        "full_mesh": "direct:FullMeshTopology",
        "nvidia_smi": "pcie:NvidiaSmiTopology",
        "pcie_tree": "pcie:PcieTreeTopology",
        "rail_optimised": "fabrics:RailOptimisedTopology",
        "ring": "direct:RingTopology",
        "switch": "direct:SwitchTopology",
        "torus2d": "direct:Torus2DTopology",
        "torus3d": "direct:Torus3DTopology",
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
