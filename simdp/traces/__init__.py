"""What real jobs record: traces, NCCL's flight recorder, DDP's logging data, and text."""

from simdp.traces.ddp_files import DdpLogging
from simdp.traces.flight_files import FlightEntry, FlightRecord, GroupStatus
from simdp.traces.mixture import JobFiles, sort_files
from simdp.traces.rows import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST_KINDS,
    ITEMSIZE,
    KERNEL_KINDS,
    OP,
    RUNTIME,
    SET,
    SYNC,
    HostEvents,
    RankTrace,
    TraceCollectives,
    TraceGroup,
    TraceKernels,
    TraceSteps,
)
from simdp.traces.sources import (
    PathKind,
    kind_of,
    read_ddp_logging,
    read_flight_records,
    read_trace,
    read_traces,
)

__all__ = [
    "ANNOTATION",
    "COMMUNICATION",
    "COMPUTE",
    "COPY",
    "HOST_KINDS",
    "ITEMSIZE",
    "KERNEL_KINDS",
    "OP",
    "RUNTIME",
    "SET",
    "SYNC",
    "DdpLogging",
    "FlightEntry",
    "FlightRecord",
    "GroupStatus",
    "HostEvents",
    "JobFiles",
    "PathKind",
    "RankTrace",
    "TraceCollectives",
    "TraceGroup",
    "TraceKernels",
    "TraceSteps",
    "kind_of",
    "read_ddp_logging",
    "read_flight_records",
    "read_trace",
    "read_traces",
    "sort_files",
]
