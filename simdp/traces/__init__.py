"""What traces of real jobs say: Kineto's, ours, NCCL's flight recorder's, DDP's logging data."""

from simdp.traces.collectives import Collectives
from simdp.traces.ddp_logging import DdpLogging
from simdp.traces.flight_record import FlightEntry, FlightRecord, GroupStatus
from simdp.traces.host_events import ANNOTATION, HOST_KINDS, OP, RUNTIME, HostEvents
from simdp.traces.kernels import COMMUNICATION, COMPUTE, COPY, KERNEL_KINDS, SET, SYNC, Kernels
from simdp.traces.rank_trace import RankTrace, Steps, TraceGroup
from simdp.traces.reading import (
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
    "KERNEL_KINDS",
    "OP",
    "RUNTIME",
    "SET",
    "SYNC",
    "Collectives",
    "DdpLogging",
    "FlightEntry",
    "FlightRecord",
    "GroupStatus",
    "HostEvents",
    "Kernels",
    "PathKind",
    "RankTrace",
    "Steps",
    "TraceGroup",
    "kind_of",
    "read_ddp_logging",
    "read_flight_records",
    "read_trace",
    "read_traces",
]
