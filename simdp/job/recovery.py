"""Recovery policies after a failure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simdp.family import Family
from simdp.percent import Percent
from simdp.spec import Bandwidth, Int, PositiveSeconds, Seconds, Spec, one_of

__path__: list[str] = []  # for old names of submodules, see simdp.moved


class Recovery(Spec):
    """Common options of all policies: the times of a restart from a checkpoint.

    Attributes
    ----------
    detection : float
        Until it is known that something failed [s].
    hang_timeout : float
        The same where nothing fails but nothing goes on either [s]; torch's process groups over
        NCCL give up after 10 min.
    rescheduling : float
        Until nodes are found for all processes [s]; the job is queued.
    restart : float
        Start of all processes until they load [s]; also when the job begins.
    load : float or None
        Until the state is back [s]; None: a checkpoint's bytes over storage, or the time of a
        write where only that is given.
    """

    kind: str
    detection: Seconds = 0.0
    hang_timeout: PositiveSeconds = 600.0
    rescheduling: Seconds = 0.0
    restart: Seconds = 0.0
    load: Seconds | None = None

    @property
    def num_spares(self) -> int | None:
        """Standby nodes; None: unlimited."""
        return 0


# Recovery -----------------------------------------------------------------------------------------

RECOVERY: Family[Recovery] = Family(
    "recovery",
    Recovery,
    __name__,
    {
        "elastic": "Elastic",
        "migrate": "Migrate",
        "replica_groups": "ReplicaGroups",
        "restart": "Restart",
        "spares": "Spares",
    },
)
AnyRecovery = Annotated[Recovery, one_of("recovery", RECOVERY, default="restart")]


# Elastic ------------------------------------------------------------------------------------------


class Elastic(Recovery):
    """All processes start from the last checkpoint with the nodes that are left, as by torchrun.

    A step then takes as long as on a cluster of so many nodes: of the same samples where
    ``workload.global_batch`` is given, of fewer where ``workload.microbatch`` is. A job of so many
    ``steps`` counts steps, one of ``epochs`` samples.

    Attributes
    ----------
    min_nodes : int
        With fewer the job waits.
    rejoin : {"checkpoint", "at_once"}
        When nodes that come back are taken in, for which all processes start again: after the next
        checkpoint, so that nothing is lost, or at once, as by torchrun.
    """

    kind: Literal["elastic"] = "elastic"
    min_nodes: Int = Field(1, ge=1, le=2**20)
    rejoin: Literal["checkpoint", "at_once"] = "checkpoint"


# Migrate ------------------------------------------------------------------------------------------


class Migrate(Recovery):
    """Work on a failing node continues on another one; only the current step is repeated.

    There always is another node. Where a failure leaves nothing to move, and where the whole job
    fails, all processes start from the last checkpoint.

    Attributes
    ----------
    migration : float
        Downtime of the job [s].
    share : float
        Of the failures of nodes, those that leave the state to be moved.
    """

    kind: Literal["migrate"] = "migrate"
    migration: PositiveSeconds
    share: Percent = 1.0

    @property
    def num_spares(self) -> None:
        return None


# Replica groups -----------------------------------------------------------------------------------


class ReplicaGroups(Recovery):
    """Groups of nodes that have the whole model each, after torchft (73dafea, 2025-10).

    The step in which a group fails is not committed: the survivors wait for ``timeout``, drop its
    gradients, and continue without that group. It restarts, copies the weights from a peer while
    the others continue, and rejoins at the next step. All restart from a checkpoint only if no
    group is left. A step with fewer groups counts as a step, whose sums are divided by fewer; a job
    of ``epochs`` counts samples.

    Attributes
    ----------
    group_nodes : int
        Nodes of a group: one that fails takes its group along.
    min_replicas : int
        With fewer groups no step is taken.
    timeout : float
        Until an operation of a lost group is given up and there is a quorum without it [s].
    quorum : float or None
        Cost of forming a quorum, and of the vote at the end of a step, per step [s]. None: four
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


# Restart ------------------------------------------------------------------------------------------


class Restart(Recovery):
    """All processes start again from the last checkpoint, when all nodes are there again.

    Where repairs take no time a node is replaced at once, by the scheduler's.
    """

    kind: Literal["restart"] = "restart"


# Spares -------------------------------------------------------------------------------------------


class Spares(Recovery):
    """A spare takes a lost node's place, and all processes start from the last checkpoint.

    Where no spare is left, the job waits for the first repair. A repaired node is a spare.

    Attributes
    ----------
    num : int
        Standby nodes in addition to those of the cluster; they fail, and cost, as others do.
    swap : float
        Until a spare has taken a lost node's place [s].
    """

    kind: Literal["spares"] = "spares"
    num: Int = Field(ge=1, le=2**20)
    swap: Seconds = 0.0

    @property
    def num_spares(self) -> int:
        return self.num
