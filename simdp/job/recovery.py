"""Checkpoints, the best interval between them, and recovery policies after a failure."""

from __future__ import annotations

from math import exp, expm1, log1p, sqrt
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from simdp.errors import unknown_name
from simdp.family import Family
from simdp.spec import (
    Bandwidth,
    Bytes,
    Int,
    Percent,
    PositiveBytes,
    PositiveSeconds,
    Quantity,
    Seconds,
    Spec,
    one_of,
    problem,
)
from simdp.units import format_quantity

RULES = ("daly", "simulated", "young")
"""What finds an interval: Daly's formula of higher order, trying out, Young's formula."""

_time = Quantity("time", exclusive=True)
Steps = Annotated[Int, Field(ge=1)]


def _steps_or_time(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise problem(f"{value} is out of range; write a time or a number of steps >= 1.")
        return value
    return _time.validate(value)


def _interval(value: Any) -> int | float | str:
    if isinstance(value, str) and value.isalpha():
        if value not in RULES:
            raise problem(unknown_name("interval", value, RULES))
        return value
    return _steps_or_time(value)


def _written(value: int | float | str) -> int | str:
    return format_quantity(value, "time") if isinstance(value, float) else value


Every = Annotated[
    int | float,
    PlainValidator(_steps_or_time, json_schema_input_type=Steps | PositiveSeconds),
    PlainSerializer(_written),
]
Interval = Annotated[
    int | float | str,
    PlainValidator(
        _interval,
        json_schema_input_type=Steps | PositiveSeconds | Literal["daly", "simulated", "young"],
    ),
    PlainSerializer(_written),
]


class InMemoryCopies(Spec):
    """Copies of the state in the memory of other nodes' hosts, in addition to storage.

    They are complete at once, and block training while they are made. Each node sends its ranks'
    state to a peer.
    """

    every: Every
    """Steps, or training time [s] that is rounded to steps."""
    write: Seconds | None = None
    """Blocking time of each [s]; by default from ``bandwidth``."""
    bandwidth: Bandwidth | None = None
    """At which a node sends its part to a peer, and gets it back [bytes/s]."""
    tolerates: Literal["process", "node"] = "node"
    """The worst after which they can still be loaded: processes that die, or one node that is lost.
    Several nodes at once are too many."""

    @model_validator(mode="after")
    def _has_a_time(self) -> InMemoryCopies:
        if (self.write is None) == (self.bandwidth is None):
            raise problem("write and bandwidth: give one of them; the other follows.")
        return self


class Checkpoint(Spec):
    """Checkpoints on storage, and in-memory copies."""

    every: Interval = "daly"
    """Steps; training time [s], rounded to steps; or how to find the best: by Young's formula, by
    Daly's of higher order, or by simulating the job with several."""
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    """Whether training blocks until all is written, or only while each device's part is copied to
    its host. The background write must end before the next begins, and after a failure during it
    the previous checkpoint counts."""
    storage: Bandwidth | None = None
    """Bandwidth of storage, for the whole job [bytes/s]."""
    per_node: Bandwidth | None = None
    """Bandwidth between a node and storage, which its writers share [bytes/s]; None: no limit."""
    storage_size: PositiveBytes | None = None
    """Room on storage [bytes]; it must hold two checkpoints, as the one before is kept until the
    next is complete."""
    size: Bytes | None = None
    """Of a checkpoint [bytes]. By default weights and optimizer state, once for all replicas."""
    writers: Int | None = Field(None, ge=1, le=2**20)
    """Ranks that write equal parts at once, spread over the nodes. None: those that have shards of
    the state, in one of all groups that do; of plain DDP one rank."""
    incremental: Percent = 1.0
    """Fraction of the size that is written each time; a load reads all of it."""
    write: Seconds | None = None
    """Duration of a write [s], in place of the value from bandwidths."""
    host_copy: Seconds | None = None
    """Duration of the copy to the hosts [s], in place of the value from ``cluster.host``; for
    asynchronous checkpoints."""
    levels: list[InMemoryCopies] = Field(default_factory=list)
    """In memory, more often than on storage."""

    @model_validator(mode="after")
    def _can_be_timed_and_held(self) -> Checkpoint:
        if self.write is None and self.storage is None:
            raise problem(
                "how long a write takes is not known; add storage: 2 TB/s, or write: 20 s."
            )
        if self.write is not None and (self.storage is not None or self.per_node is not None):
            raise problem(
                "write gives the time that storage and per_node would; keep one or the other."
            )
        if self.host_copy is not None and self.mode == "synchronous":
            raise problem(
                "host_copy is of asynchronous checkpoints; write mode: asynchronous, or leave it "
                "out."
            )
        if not 0 < self.incremental <= 1:
            raise problem(
                f"incremental: {self.incremental:.12g} of a checkpoint is out of range; write for "
                'example "20 %", and "100 %" for whole ones.'
            )
        if self.size is not None and (wrong := self.problem_with_size(self.size)):
            raise problem(wrong)
        return self

    def problem_with_size(self, nbytes: float) -> str | None:
        """Say why storage cannot hold checkpoints of a size [bytes]; or None."""
        room = self.storage_size
        if room is None or 2 * nbytes <= room:
            return None
        return (
            f"storage_size: {format_quantity(room, 'data size')} cannot hold two checkpoints of "
            f"{format_quantity(nbytes, 'data size')}, of which the one before is kept until the "
            "next is complete; give more, or a smaller size."
        )


# Intervals ----------------------------------------------------------------------------------------

NEWTON_STEPS, FAR = 60, 30.0


def young(write: float, mttf: float) -> float:
    """Interval after Young, "A first order approximation to the optimum checkpoint interval", 1974.

    ``sqrt(2 w M)`` [s].
    """
    return sqrt(2 * write * mttf)


def daly(write: float, mttf: float) -> float:
    """Interval after Daly's higher order formula [s].

    ``sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w`` where w < 2 M, else M. Daly, "A higher
    order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 37.
    """
    if write >= 2 * mttf:
        return mttf
    ratio = write / (2 * mttf)
    return young(write, mttf) * (1 + sqrt(ratio) / 3 + ratio / 9) - write


def exact(write: float, mttf: float) -> float:
    """Interval that makes `slowdown` least: ``M (1 + W0(-exp(-w/M - 1)))`` [s].

    Where its derivative vanishes, ``exp(-(t + w) / M) = 1 - t / M``, which Lambert's W solves.
    """
    return mttf * _one_plus_lambert(write / mttf)


def _one_plus_lambert(x: float) -> float:
    """``1 + W0(-exp(-x - 1))`` for x >= 0, by Newton's method for u in ``-u - log(1 - u) = x``."""
    if x == 0 or x > FAR:
        return 1 - exp(-x - 1) if x else 0.0
    u = min(sqrt(2 * x), 1 - exp(-x - 1))  # near 0, and far from it
    for _ in range(NEWTON_STEPS):
        change = (-u - log1p(-u) - x) * (1 - u) / u
        u = min(max(u - change, u / 2), (u + 1) / 2)
        if abs(change) < 1e-15 * u:
            break
    return u


def slowdown(interval: float, write: float, mttf: float, restart: float) -> float:
    """Expected time per useful time, where failures also hit writes and restarts.

    ``M exp(R / M) (exp((t + w) / M) - 1) / t``; its inverse is the goodput. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", 2006, equation 20.
    """
    return mttf * exp(restart / mttf) * expm1((interval + write) / mttf) / interval


class Recovery(Spec):
    """Common options of all policies: the times of a restart from a checkpoint."""

    kind: str
    detection: Seconds = 0.0
    """Until it is known that something failed [s]."""
    hang_timeout: PositiveSeconds = 600.0
    """The same where nothing fails but nothing goes on either [s]; torch's process groups over NCCL
    give up after 10 min."""
    rescheduling: Seconds = 0.0
    """Until nodes are found for all processes [s]; the job is queued."""
    restart: Seconds = 0.0
    """Start of all processes until they load [s]; also when the job begins."""
    load: Seconds | None = None
    """Until the state is back [s]; None: a checkpoint's bytes over storage, or the time of a write
    where only that is given."""

    @property
    def num_spares(self) -> int | None:
        """Standby nodes; None: unlimited."""
        return 0


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


class Elastic(Recovery):
    """All processes start from the last checkpoint with the nodes that are left, as by torchrun.

    A step then takes as long as on a cluster of so many nodes: of the same samples where
    ``workload.global_batch`` is given, of fewer where ``workload.microbatch`` is. A job of so many
    ``steps`` counts steps, one of ``epochs`` samples.
    """

    kind: Literal["elastic"] = "elastic"
    min_nodes: Int = Field(1, ge=1, le=2**20)
    """With fewer the job waits."""
    rejoin: Literal["checkpoint", "at_once"] = "checkpoint"
    """When nodes that come back are taken in, for which all processes start again: after the next
    checkpoint, so that nothing is lost, or at once, as by torchrun."""


class Migrate(Recovery):
    """Work on a failing node continues on another one; only the current step is repeated.

    There always is another node. Where a failure leaves nothing to move, and where the whole job
    fails, all processes start from the last checkpoint.
    """

    kind: Literal["migrate"] = "migrate"
    migration: PositiveSeconds
    """Downtime of the job [s]."""
    share: Percent = 1.0
    """Of the failures of nodes, those that leave the state to be moved."""

    @property
    def num_spares(self) -> None:
        return None


class ReplicaGroups(Recovery):
    """Groups of nodes that have the whole model each, after torchft (73dafea, 2025-10).

    The step in which a group fails is not committed: the survivors wait for ``timeout``, drop its
    gradients, and continue without that group. It restarts, copies the weights from a peer while
    the others continue, and rejoins at the next step. All restart from a checkpoint only if no
    group is left. A step with fewer groups counts as a step, whose sums are divided by fewer; a job
    of ``epochs`` counts samples.
    """

    kind: Literal["replica_groups"] = "replica_groups"
    group_nodes: Int = Field(1, ge=1, le=2**20)
    """Nodes of a group: one that fails takes its group along."""
    min_replicas: Int = Field(1, ge=1, le=2**20)
    """With fewer groups no step is taken."""
    timeout: PositiveSeconds = 60.0
    """Until an operation of a lost group is given up and there is a quorum without it [s]."""
    quorum: Seconds | None = None
    """Cost of forming a quorum, and of the vote at the end of a step, per step [s]. None: four
    messages over the network between nodes, to the lighthouse and back, twice."""
    exchange_bandwidth: Bandwidth | None = None
    """At which a node exchanges gradients with the other groups where that is not done by the
    collectives of the strategy but, as by torchft's Gloo process group, over the hosts [bytes/s].
    It comes after backward, so that nothing hides it: ``2 (G - 1) / G`` times a node's gradients,
    of G groups. None: the strategy's collectives, as they are simulated, which overlap with
    backward."""
    heal_bandwidth: Bandwidth | None = None
    """At which a node copies its part of the state from a peer [bytes/s]; None: of the network
    between nodes, or of the host's link where there is one node."""


class Restart(Recovery):
    """All processes start again from the last checkpoint, when all nodes are there again.

    Where repairs take no time a node is replaced at once, by the scheduler's.
    """

    kind: Literal["restart"] = "restart"


class Spares(Recovery):
    """A spare takes a lost node's place, and all processes start from the last checkpoint.

    Where no spare is left, the job waits for the first repair. A repaired node is a spare.
    """

    kind: Literal["spares"] = "spares"
    num: Int = Field(ge=1, le=2**20)
    """Standby nodes in addition to those of the cluster; they fail, and cost, as others do."""
    swap: Seconds = 0.0
    """Until a spare has taken a lost node's place [s]."""

    @property
    def num_spares(self) -> int:
        return self.num
