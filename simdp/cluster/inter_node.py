"""InterNode: the network that joins the nodes of a cluster."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from simdp.cluster.link import AnyLink, Link
from simdp.cluster.one_or_list import one_or_list
from simdp.cluster.topologies import AnyTopology
from simdp.cluster.topologies.switch import SwitchTopology
from simdp.spec import Int, Spec


class InterNode(Spec):
    """The network between nodes.

    Attributes
    ----------
    topology : Topology
        How the nodes are joined.
    link : Link or list of Link
        One direction of one link, from a network card to the switch or to another card; or one
        per node, for the links at that node's ports.
    links_per_node : int
        Network cards per node, k: card ``r % k`` serves the local rank r. Behind switches every
        card has a port of its own; a ring or a full mesh of nodes exists k times over.
    nics : list of int or None
        The card of each device of a node, in place of ``r % k``.
    """

    model_config = ConfigDict(json_schema_extra={"required": []})  # a machine may bring the link

    topology: AnyTopology = SwitchTopology()
    link: AnyLink | list[AnyLink]
    links_per_node: Int = Field(1, ge=1, le=1024)
    nics: list[Int] | None = None

    @field_validator("link", mode="wrap")
    @classmethod
    def _one_or_a_list(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        return one_or_list(AnyLink, value, info)

    def links(self, num_nodes: int) -> list[Link]:
        """One link per node."""
        return self.link if isinstance(self.link, list) else [self.link] * num_nodes
