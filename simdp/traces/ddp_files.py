"""DDP's logging data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simdp.errors import ScenarioError
from simdp.traces.flight_files import parse_json, read_bytes
from simdp.traces.gathering import dtype_name
from simdp.traces.rows import mapping, number, quantity, text


@dataclass(frozen=True)
class DdpLogging:
    """Means over the iterations that torch's DDP timed, and its buckets."""

    path: Path  # which file
    # rank, world_size: which rank, of how many
    rank: int | None
    world_size: int | None
    backend: str  # ``"nccl"``, ``"gloo"``; may be empty
    module: str  # name of the module's class; may be empty
    iteration: int | None  # how many were run
    # forward_s, backward_s: compute of forward and backward [s]
    forward_s: float | None
    backward_s: float | None
    # backward_comm_s, overlap_s: from the first to the last all-reduce, and its part hidden by
    # compute [s]
    backward_comm_s: float | None
    overlap_s: float | None
    # sizes of the buckets in the order of their launch, rebuilt where they were [bytes]
    bucket_nbytes: tuple[int, ...]
    # parameter_nbytes, num_parameters: of all parameters [bytes], and how many tensors they are
    parameter_nbytes: int | None
    num_parameters: int | None
    dtypes: tuple[str, ...]  # data type of the parameters, in torch's name
    fields: dict[str, int | float | str | bool]  # all fields of the file, as written


# Ddp files ----------------------------------------------------------------------------------------

MAX_BYTES = 2**24

TELLING = ("bucket_sizes", "module_name", "num_parameter_tensors", "avg_backward_compute_time")
"""Fields of which such a file has two at least."""

WANTED = "write json.dump(model._get_ddp_logging_data(), file) after some steps of DDP"
"""Wanted content of a file, for errors."""


def is_logging(document: object) -> bool:
    """Return whether a document is DDP's logging data."""
    return sum(field in mapping(document) for field in TELLING) >= 2


def read(path: Path) -> DdpLogging:
    """Read one file; see `reading.read_ddp_logging`."""
    logging = mapping(parse_json(read_bytes(path, WANTED, MAX_BYTES), str(path), WANTED))
    if not is_logging(logging):
        raise ScenarioError(
            [f"{path}: is no logging data of DDP: it lacks {' and '.join(TELLING[:2])}; {WANTED}."]
        )
    sizes = _sizes(logging.get("rebuilt_bucket_sizes")) or _sizes(logging.get("bucket_sizes"))
    dtypes = [word.strip() for word in text(logging.get("dtypes")).split(",") if word.strip()]
    return DdpLogging(
        path=path,
        rank=number(logging.get("rank")),
        world_size=number(logging.get("world_size")),
        backend=text(logging.get("backend_name")),
        module=text(logging.get("module_name")),
        iteration=number(logging.get("iteration")),
        forward_s=_mean(logging, "forward_compute_time"),
        backward_s=_mean(logging, "backward_compute_time"),
        backward_comm_s=_mean(logging, "backward_comm_time"),
        overlap_s=_mean(logging, "backward_compute_comm_overlap_time"),
        bucket_nbytes=sizes,
        parameter_nbytes=number(logging.get("total_parameter_size_bytes")),
        num_parameters=number(logging.get("num_parameter_tensors")),
        dtypes=tuple(dtype_name(word) or word for word in dtypes),
        fields={
            str(key): value
            for key, value in logging.items()
            if isinstance(value, int | float | str | bool)
        },
    )


def _sizes(written: object) -> tuple[int, ...]:
    """Read ``"1071144, 526336"``, or a list of numbers."""
    return tuple(int(digits) for digits in re.findall(r"\d{1,18}", str(written or "")))


def _mean(logging: Mapping[object, object], field: str) -> float | None:
    """Seconds of the mean over iterations; None where nothing was timed."""
    return quantity(logging.get(f"avg_{field}"), 1e-9) or None
