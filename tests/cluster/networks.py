"""What tests of topologies share: an example of every kind, and ways to look at one."""

from pathlib import Path

import networkx as nx
import numpy as np
from pydantic import TypeAdapter

from simdp.cluster.hardware import Link
from simdp.cluster.topologies import AnyTopology

TOPO = Path(__file__).parent / "topo"
LINK = Link(alpha="1 us", bandwidth="6 GB/s")

MESH = [{"ends": [i, j]} for i in range(16) for j in range(i)]

EXAMPLES = {
    "cube_mesh": "cube_mesh",
    "custom_star": {"kind": "custom", "links": [{"ends": [i, "hub"]} for i in range(16)]},
    "custom_mesh": {"kind": "custom", "links": [*MESH, {"ends": [0, "x"], "width": 2}]},
    "dragonfly": "dragonfly",
    "dragonfly_small": {"kind": "dragonfly", "ports_per_router": 1, "routers_per_group": 2},
    "fat_tree": "fat_tree",
    "fat_tree_small": {"kind": "fat_tree", "ports_per_leaf": 2, "oversubscription": 2},
    "fat_tree_ecmp": {"kind": "fat_tree", "ports_per_leaf": 4, "routing": "pair"},
    "fat_tree_3": {"kind": "fat_tree", "levels": 3, "ports_per_leaf": 2},
    "fat_tree_3_slim": {
        "kind": "fat_tree",
        "levels": 3,
        "ports_per_leaf": 2,
        "leaves": 1,
        "spines": 3,
        "cores": 2,
        "oversubscription": 1.5,
        "pod_oversubscription": 2,
        "routing": "pair",
    },
    "full_mesh": "full_mesh",
    "nvidia_smi_dgx1": {"kind": "nvidia_smi", "path": "dgx1_v100.txt", "pcie": "pcie3-x16"},
    "nvidia_smi_a100": {"kind": "nvidia_smi", "path": "dgx_a100.txt", "pcie": "pcie4-x16"},
    "nvidia_smi_pcie": {"kind": "nvidia_smi", "path": "pcie_box.txt"},
    "pcie_tree": "pcie_tree",
    "pcie_tree_shallow": {"kind": "pcie_tree", "gpus_per_switch": 1, "p2p_level": "sys"},
    "pcie_tree_geforce": {"kind": "pcie_tree", "sockets": 1, "p2p_level": "loc"},
    "rail_optimised": "rail_optimised",
    "rail_optimised_units": {"kind": "rail_optimised", "nodes_per_rail": 2, "oversubscription": 2},
    "ring": "ring",
    "switch": "switch",
    "torus2d": "torus2d",
    "torus3d": "torus3d",
}


def example(name):
    raw = EXAMPLES[name]
    if isinstance(raw, dict) and "path" in raw:
        raw = {**raw, "path": str(TOPO / raw["path"])}
    return TypeAdapter(AnyTopology).validate_python(raw)


def pairs(n):
    src, dst = (part.ravel() for part in np.indices((n, n)))
    return src[src != dst], dst[src != dst]


def route(topology, src, dst, n, per_node=1):
    """The vertices that a route passes."""
    links = topology.routes(np.array([src]), np.array([dst]), n, per_node)[0]
    leaves, enters = topology.ends(links[links >= 0], n, per_node)
    assert enters[:-1].tolist() == leaves[1:].tolist()
    return [*leaves.tolist(), int(enters[-1])]


def bisection(topology, first_half, n, per_node=1, link=LINK):
    """What all links can carry from one half of the endpoints to the other, over a link's."""
    graph = nx.DiGraph()
    links = np.arange(topology.num_links(n, per_node))
    _, bandwidth = topology.figures(links, link, n, per_node)
    for u, v, width in zip(*topology.ends(links, n, per_node), bandwidth, strict=True):
        if u != v:
            graph.add_edge(int(u), int(v), capacity=float(width))
    for vertex in range(n):
        outside = ("from", vertex) if vertex in first_half else (vertex, "to")
        graph.add_edge(*outside)
    return nx.maximum_flow_value(graph, "from", "to") / link.bandwidth
