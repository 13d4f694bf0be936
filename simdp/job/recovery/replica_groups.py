"""Replica groups: one that fails drops out for a while, and the others go on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.job.recovery.base import Recovery
from simdp.spec import Bandwidth, Int, PositiveSeconds, Seconds


class ReplicaGroups(Recovery):
    """Groups of nodes that have the whole model each, after torchft (73dafea, 2025-10).

    The step in which a group fails is not committed: the survivors wait for ``timeout``, drop its
    gradients, and go on without that group. It starts again, copies the weights from a peer while
    the others go on, and takes part from the next step on. From a checkpoint they all start only
    when no group is left. A step with fewer groups is a step, whose sums are divided by fewer; a
    job of ``epochs`` counts samples.

    Attributes
    ----------
    group_nodes : int
        Nodes of a group: one that fails takes its group along.
    min_replicas : int
        With fewer groups no step is taken.
    timeout : float
        Until an operation of a lost group is given up and there is a quorum without it [s].
    quorum : float or None
        What forming one, and the vote on the step at its end, hold each step up for [s]. None: four
        messages over the network between nodes, to the lighthouse and back, twice.
    exchange_bandwidth : float or None
        At which a node exchanges gradients with the other groups where that is not done by the
        collectives of the strategy but, as by torchft's Gloo process group, over the hosts
        [bytes/s]. It comes after backward, so that nothing hides it: ``2 (G - 1) / G`` times a
        node's gradients, of G groups. None: the strategy's collectives, as they are simulated,
        which overlap with backward.
    heal_bandwidth : float or None
        At which a node copies its part of the state from a peer [bytes/s]; None: of the network
        between nodes, or of the host's link where there is one node.
    """

    kind: Literal["replica_groups"] = "replica_groups"
    group_nodes: Int = Field(1, ge=1, le=2**20)
    min_replicas: Int = Field(1, ge=1, le=2**20)
    timeout: PositiveSeconds = 60.0
    quorum: Seconds | None = None
    exchange_bandwidth: Bandwidth | None = None
    heal_bandwidth: Bandwidth | None = None
