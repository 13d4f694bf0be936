"""Rail-optimised network: card k of every node is on rail switch k, and a spine joins the rails."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.arrays import Ints
from simdp.cluster.topologies.clos import Clos, ClosTopology, spines_over
from simdp.spec import Int


class RailOptimisedTopology(ClosTopology):
    """Card k of every node is on rail switch k; traffic between rails passes a spine switch.

    Attributes
    ----------
    nodes_per_rail : int or None
        Nodes that share a set of rail switches (a scalable unit of a DGX SuperPOD); None: all.
    spines : int or None
        Spine switches. None: nodes of a rail over ``oversubscription``; 0: rails are not joined,
        which is refused where ranks of several cards meet.
    """

    kind: Literal["rail_optimised"] = "rail_optimised"
    nodes_per_rail: Int | None = Field(None, ge=1, le=2**20)
    spines: Int | None = Field(None, ge=0, le=2**16)

    def clos(self, n: int, per_node: int) -> Clos:
        nodes = n // per_node
        on_rail = min(nodes, self.nodes_per_rail or nodes)
        leaves = -(-nodes // on_rail) * per_node
        spines, trunk = spines_over(on_rail, self.oversubscription, self.spines)
        return Clos(
            num_ports=n,
            leaves=leaves,
            pods=1,
            leaves_per_pod=leaves,
            spines=spines if leaves > 1 else 0,
            cores=0,
            leaf_trunk=trunk,
            pod_trunk=1.0,
        )

    def leaf_of(self, ports: Ints, n: int, per_node: int) -> Ints:
        node, card = ports // per_node, ports % per_node
        return node // (self.nodes_per_rail or n // per_node) * per_node + card

    def leaf_name(self, leaf: int, n: int, per_node: int) -> str:
        unit, rail = divmod(leaf, per_node)
        several = self.nodes_per_rail is not None and self.nodes_per_rail * per_node < n
        return f"rail switch {rail}" + (f" of unit {unit}" if several else "")
