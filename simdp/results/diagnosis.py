"""Typed results of a diagnosis: time by cause, evidence, and remedies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from simdp.results.result import Inline, as_json

Cause = Literal[
    "launch_bound",
    "exposed_communication",
    "straggler",
    "imbalance",
    "input_stall",
    "compute_bound",
    "slow_link",
    "desynchronised",
    "unexplained",
]


@dataclass(frozen=True)
class Remedy:
    """A change that shortens a step.

    Attributes
    ----------
    change : str
        In words.
    step_time_s : float
        Simulated with it [s].
    """

    change: str
    step_time_s: float


@dataclass(frozen=True)
class Finding:
    """One cause of the step's time.

    Attributes
    ----------
    cause : str
        One of `Cause`.
    share : float
        Part of the step, 0 to 1.
    evidence : str
        A sentence with figures.
    ranks : tuple of int
        Ranks responsible; empty for all, or for a rank without a trace.
    seconds : float or None
        Of a step [s]; None without steps. For a straggler, the time that the longest waiting rank
        waits for it, as in ``waits`` and in ``late_s`` of its own row.
    remedies : tuple of Remedy
        The best first; none where nothing can be simulated.
    """

    cause: Cause
    share: float
    evidence: str
    ranks: tuple[int, ...] = ()
    seconds: float | None = None
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True)
class BucketRow:
    """One bucket of gradients.

    Attributes
    ----------
    num_elements : int
        In it.
    dtype : str
        Data type of the buckets, in torch's name.
    """

    num_elements: int
    dtype: str


@dataclass(frozen=True)
class StepRow:
    """One step of one rank, with the work launched in it [s].

    Attributes
    ----------
    rank, step : int
        Which; the step by its ProfilerStep's number.
    step_time_s : float
        From the host's marks.
    span_s, busy_s, compute_s, comm_s, hidden_comm_s, exposed_comm_s, copy_s : float
        Of its device: from first to last, unions of busy intervals, and of copies and sets only.
    counted : bool
        Whether it is in the means; a step in which the launch queue fills is not.
    """

    rank: int
    step: int
    step_time_s: float
    span_s: float
    busy_s: float
    compute_s: float
    comm_s: float
    hidden_comm_s: float
    exposed_comm_s: float
    copy_s: float
    counted: bool


@dataclass(frozen=True)
class RankRow:
    """One rank: means of a step, or of the whole trace where it has no steps [s].

    Attributes
    ----------
    rank : int or None
        Rank number; None if neither the trace nor its name gives it.
    step_time_s : float or None
        None without steps.
    compute_s, exposed_comm_s, hidden_comm_s, copy_s, idle_s : float
        Times of its device; copies separately.
    wait_s : float
        Of its collectives: for ranks that came later. Of a diagnosis: its mean over all ranks.
    late_s : float
        Delay behind the first rank at collectives, as far as another rank waits.
    input_s : float
        Its device had nothing to do while the host fetched data, or only a copy from the host.
    launch_s : float
        Its device had nothing to do since the host was late.
    clock_s : float
        Its clock, as the ends of collectives show it, less that of the first rank.
    trace : dict of str to float
        `span_s`, `busy_s`, `compute_s`, `comm_s`, `hidden_comm_s`, `copy_s` of the whole file.
    """

    rank: int | None
    step_time_s: float | None
    compute_s: float
    exposed_comm_s: float
    hidden_comm_s: float
    copy_s: float
    idle_s: float
    wait_s: float
    late_s: float
    input_s: float
    launch_s: float
    clock_s: float
    trace: dict[str, float]


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one kind, size and group.

    Attributes
    ----------
    name, dtype, group, algorithm, protocol : str
        As torch and NCCL say them; empty where unknown.
    num_elements, group_size : int or None
        Of a rank's input; ranks.
    nbytes : float or None
        Of the whole buffer, as nccl-tests counts [bytes].
    count : int
        How many were seen.
    transfer_s, wait_s : float
        Mean of the shortest over ranks, and of the excess of the others [s].
    algbw, busbw : float or None
        Of the transfer [bytes/s].
    expected_s : float or None
        Predicted time on the machine [s].
    """

    name: str
    num_elements: int | None
    dtype: str
    nbytes: float | None
    group: str
    group_size: int | None
    algorithm: str
    protocol: str
    count: int
    transfer_s: float
    wait_s: float
    algbw: float | None
    busbw: float | None
    expected_s: float | None


@dataclass(frozen=True)
class WaitRow:
    """How long a rank waits for another, in the mean of a step [s]."""

    rank: int
    late_rank: int
    wait_s: float


@dataclass(frozen=True)
class LateRow:
    """Time of a step lost to late ranks.

    Attributes
    ----------
    step : int
        Which.
    rank : int
        That came last, by its waiting.
    lost_s : float
        So long the rank waited that waited longest [s].
    """

    step: int
    rank: int
    lost_s: float


@dataclass(frozen=True)
class NodeRow:
    """The ranks of a node, means of a step [s].

    Attributes
    ----------
    node : int
        Which, from 0.
    wait_s, late_s : float
        Means of its ranks, as `RankRow` has them.
    """

    node: int
    wait_s: float
    late_s: float


@dataclass(frozen=True)
class MatchRow:
    """A collective that ranks disagree on, or that some of them lack.

    Attributes
    ----------
    group : str
        Process group.
    sequence : int
        Its number there, or its place in the trace.
    name : str
        Collective of most ranks.
    state : str
        In the words of torch's analyser of flight records: ``SIZE_OR_SYNTAX_MISMATCH`` and so on.
    missing_ranks, culprit_ranks : tuple of int
        Ranks that did not call it; ranks that differ from most.
    detail : str
        Difference between the calls.
    """

    group: str
    sequence: int
    name: str
    state: str
    missing_ranks: tuple[int, ...]
    culprit_ranks: tuple[int, ...]
    detail: str


@dataclass(frozen=True)
class Diagnosis(Inline):
    """Diagnosis of a job from its traces; means per step and over ranks, in seconds.

    Attributes
    ----------
    source : str
        ``"kineto"``, ``"simdp"``, ``"flight_record"``, ``"ddp_logging"``; ``"reported"`` without
        a trace.
    step_time_s : float or None
        None where the traces have no steps.
    compute_s, exposed_comm_s, hidden_comm_s, idle_s : float or None
        Times of devices; of the whole trace without steps.
    num_ranks : int
        Ranks with a trace.
    buckets : tuple of BucketRow
        Of gradients, in launch order.
    verdict : tuple of Finding
        The main cause first.
    world_size : int or None
        Ranks of the job.
    num_steps : int
        That the means are of.
    steps_are : str
        Definition of a step.
    spread_s : dict of str to float
        `min`, `median`, `max` of steps, each the longest of its ranks; empty without.
    copy_s, input_s, launch_s, wait_s, transfer_s : float or None
        Copies; idle time because data or the host was late; and the two parts of exposed
        communication: waiting for ranks, and transfers.
    replayed_s : float or None
        A step of the replay on which remedies were tried, to compare theirs with [s]; None without.
    machine, machine_from : str or None
        Reference machine of the collectives, and the reason.
    bucket_rule : str or None
        How the buckets compare with torch's rule.
    expected : dict or None
        Prediction for a job without a trace: ``step_time_s``, ``compute_s`` and ``exposed_comm_s``
        with their 90 % intervals (``interval_s``, ``compute_interval_s``,
        ``exposed_comm_interval_s``) [s], and the simulated ``microbatch``.
    ranks, nodes, steps, late, collectives, waits, mismatches : tuple
        Rows; of nodes if the machine gives the ranks of each, and there are several.
    remarks : tuple of str
        Missing or unusual data.
    """

    source: str
    step_time_s: float | None
    compute_s: float | None
    exposed_comm_s: float | None
    hidden_comm_s: float | None
    idle_s: float | None
    num_ranks: int
    buckets: tuple[BucketRow, ...] = ()
    verdict: tuple[Finding, ...] = ()
    world_size: int | None = None
    num_steps: int = 0
    steps_are: str = ""
    spread_s: dict[str, float] = field(default_factory=dict)
    copy_s: float | None = None
    input_s: float | None = None
    launch_s: float | None = None
    wait_s: float | None = None
    transfer_s: float | None = None
    replayed_s: float | None = None
    machine: str | None = None
    machine_from: str | None = None
    bucket_rule: str | None = None
    expected: dict[str, Any] | None = None
    ranks: tuple[RankRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    late: tuple[LateRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    waits: tuple[WaitRow, ...] = ()
    mismatches: tuple[MatchRow, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)
