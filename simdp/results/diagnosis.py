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
    "host_synchronisation",
    "copies",
    "many_small_collectives",
    "uneven_steps",
    "unused_parameters",
    "unexplained",
]
"""Causes that traces show."""

TextCause = Literal[
    "cross_socket",
    "different_transports",
    "duplicate_device",
    "fragmentation",
    "host_out_of_memory",
    "network_interface",
    "no_gpudirect",
    "no_peer_access",
    "one_network_card",
    "out_of_memory",
    "pci_access_control",
    "rank_failed",
    "shared_memory_full",
    "socket_transport",
    "version_mismatch",
]
"""Causes that only text shows."""

Confidence = Literal["certain", "likely", "possible"]
"""How sure a cause is: the text says so, the evidence fits it best, or it fits too."""


@dataclass(frozen=True)
class Remedy:
    """A change that shortens a step."""

    change: str
    step_time_s: float  # simulated with it [s]


@dataclass(frozen=True)
class Finding:
    """One cause of the step's time."""

    cause: Cause | TextCause
    share: float | None  # part of the step, 0 to 1; None where no step is known
    evidence: str  # a sentence with figures
    ranks: tuple[int, ...] = ()  # ranks responsible; empty for all, or for a rank without a trace
    # of a step [s]; None without steps. For a straggler, the time that the longest waiting rank
    # waits for it, as in ``waits`` and in ``late_s`` of its own row.
    seconds: float | None = None
    remedies: tuple[Remedy, ...] = ()  # the best first; none where nothing can be simulated
    # expected, obtained, remedy, confidence: of findings in text; empty and None for traces
    expected: str = ""
    obtained: str = ""
    remedy: str = ""
    confidence: Confidence | None = None

    @classmethod
    def in_text(
        cls,
        cause: Cause | TextCause,
        evidence: str,
        ranks: tuple[int, ...] = (),
        *,
        expected: str,
        obtained: str,
        remedy: str,
        confidence: Confidence,
    ) -> Finding:
        """Make a finding of a text, which knows no step."""
        return cls(cause, None, evidence, ranks, None, (), expected, obtained, remedy, confidence)

    @property
    def worth(self) -> float:
        """Its share; 0 where no step is known."""
        return self.share or 0.0


@dataclass(frozen=True)
class SourceRow:
    """One text of a diagnosis."""

    name: str  # file
    kinds: tuple[str, ...]  # what was found in it


@dataclass(frozen=True)
class BucketRow:
    """One bucket of gradients."""

    num_elements: int
    dtype: str  # data type of the buckets, in torch's name


@dataclass(frozen=True)
class StepRow:
    """One step of one rank, with the work launched in it [s]."""

    # rank, step: which; the step by its ProfilerStep's number
    rank: int
    step: int
    step_time_s: float  # from the host's marks
    # span_s, busy_s, compute_s, comm_s, hidden_comm_s, exposed_comm_s, copy_s: of its device: from
    # first to last, unions of busy intervals, and of copies and sets only
    span_s: float
    busy_s: float
    compute_s: float
    comm_s: float
    hidden_comm_s: float
    exposed_comm_s: float
    copy_s: float
    counted: bool  # whether it is in the means; a step in which the launch queue fills is not


@dataclass(frozen=True)
class RankRow:
    """One rank: means of a step, or of the whole trace without steps [s]."""

    rank: int | None  # rank number; None if neither the trace nor its name gives it
    step_time_s: float | None  # None without steps
    # compute_s ... idle_s: times of its device; copies separately
    compute_s: float
    exposed_comm_s: float
    hidden_comm_s: float
    copy_s: float
    idle_s: float
    # of its collectives: for ranks that came later. Of a diagnosis: its mean over all ranks.
    wait_s: float
    late_s: float  # delay behind the first rank at collectives, as far as another rank waits
    # its device had nothing to do while the host fetched data, or only a copy from the host
    input_s: float
    launch_s: float  # its device had nothing to do since the host was late
    clock_s: float  # its clock, as the ends of collectives show it, less that of the first rank
    # `span_s`, `busy_s`, `compute_s`, `comm_s`, `hidden_comm_s`, `copy_s` of the whole file
    trace: dict[str, float]


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one kind, size and group."""

    # name, dtype, group, algorithm, protocol: in terms of torch and NCCL; empty if unknown
    name: str
    num_elements: int | None  # of a rank's input; ranks
    dtype: str
    nbytes: float | None  # of the whole buffer, as nccl-tests counts [bytes]
    group: str
    group_size: int | None  # of a rank's input; ranks
    algorithm: str
    protocol: str
    count: int
    # transfer_s, wait_s: mean of the shortest over ranks, and of the excess of the others [s]
    transfer_s: float
    wait_s: float
    algbw: float | None  # of the transfer [bytes/s]
    busbw: float | None  # of the transfer [bytes/s]
    expected_s: float | None  # predicted time on the machine [s]


@dataclass(frozen=True)
class WaitRow:
    """Mean waiting time of a rank for another in a step [s]."""

    rank: int
    late_rank: int
    wait_s: float


@dataclass(frozen=True)
class LateRow:
    """Time of a step lost to late ranks."""

    step: int
    rank: int  # the last rank, by waiting times
    lost_s: float  # wait of the rank that waited longest [s]


@dataclass(frozen=True)
class NodeRow:
    """The ranks of a node, means of a step [s]."""

    node: int  # which, from 0
    # wait_s, late_s: means of its ranks, as `RankRow` has them
    wait_s: float
    late_s: float


@dataclass(frozen=True)
class MatchRow:
    """A collective that ranks disagree on, or that some ranks lack."""

    group: str
    sequence: int  # its number there, or its place in the trace
    name: str  # collective of most ranks
    # in the words of torch's analyser of flight records: ``SIZE_OR_SYNTAX_MISMATCH`` and so on
    state: str
    # missing_ranks, culprit_ranks: ranks that did not call it; ranks that differ from most
    missing_ranks: tuple[int, ...]
    culprit_ranks: tuple[int, ...]
    detail: str  # difference between the calls


@dataclass(frozen=True)
class Diagnosis(Inline):
    """Diagnosis of a job from its traces; means per step and over ranks, in seconds."""

    # ``"kineto"``, ``"simdp"``, ``"flight_record"``, ``"ddp_logging"``, ``"log"``; ``"reported"``
    # without a trace
    source: str
    step_time_s: float | None = None  # None where the traces have no steps
    # compute_s, exposed_comm_s, hidden_comm_s, idle_s: times of devices; of the whole trace without
    # steps
    compute_s: float | None = None
    exposed_comm_s: float | None = None
    hidden_comm_s: float | None = None
    idle_s: float | None = None
    num_ranks: int = 0  # ranks with a trace
    buckets: tuple[BucketRow, ...] = ()  # of gradients, in launch order
    verdict: tuple[Finding, ...] = ()  # the main cause first
    world_size: int | None = None
    num_steps: int = 0  # steps in the means
    steps_are: str = ""  # definition of a step
    # `min`, `median`, `max` of steps, each the longest of its ranks; empty without
    spread_s: dict[str, float] = field(default_factory=dict)
    # copy_s, input_s, launch_s, wait_s, transfer_s: copies; idle time because data or the host was
    # late; and the two parts of exposed communication: waiting for ranks, and transfers
    copy_s: float | None = None
    input_s: float | None = None
    launch_s: float | None = None
    wait_s: float | None = None
    transfer_s: float | None = None
    # step time of the replay that remedies are compared with [s]; None without a replay
    replayed_s: float | None = None
    # machine, machine_from: reference machine of the collectives, and the reason
    machine: str | None = None
    machine_from: str | None = None
    bucket_rule: str | None = None  # how the buckets compare with torch's rule
    # prediction for a job without a trace: ``step_time_s``, ``compute_s`` and ``exposed_comm_s``
    # with their 90 % intervals (``interval_s``, ``compute_interval_s``,
    # ``exposed_comm_interval_s``) [s], and the simulated ``microbatch``
    expected: dict[str, Any] | None = None
    # ranks, nodes, steps, late, collectives, waits, mismatches: rows; of nodes if the machine gives
    # of each, and there are several
    ranks: tuple[RankRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    late: tuple[LateRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    waits: tuple[WaitRow, ...] = ()
    mismatches: tuple[MatchRow, ...] = ()
    sources: tuple[SourceRow, ...] = ()  # texts, besides traces and dumps
    remarks: tuple[str, ...] = ()  # missing or unusual data

    def to_json(self) -> str:
        """Return one JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)
