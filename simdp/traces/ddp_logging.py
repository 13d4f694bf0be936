"""DDP logging: what ``DistributedDataParallel._get_ddp_logging_data()`` says of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DdpLogging:
    """Means over the iterations that torch's DDP timed, and its buckets.

    Attributes
    ----------
    path : Path
        Which file.
    rank, world_size : int or None
        Which rank, of how many.
    backend : str
        ``"nccl"``, ``"gloo"``; may be empty.
    module : str
        Name of the module's class; may be empty.
    iteration : int or None
        How many were run.
    forward_s, backward_s : float or None
        Compute of forward and backward [s].
    backward_comm_s, overlap_s : float or None
        From the first to the last all-reduce, and what of it compute hides [s].
    bucket_nbytes : tuple of int
        Sizes of the buckets in the order of their launch, rebuilt where they were [bytes].
    parameter_nbytes, num_parameters : int or None
        Of all parameters [bytes], and how many tensors they are.
    dtypes : tuple of str
        Of the parameters, as torch says them.
    fields : dict of str to (int, float, str or bool)
        All that the file says, as it is written there.
    """

    path: Path
    rank: int | None
    world_size: int | None
    backend: str
    module: str
    iteration: int | None
    forward_s: float | None
    backward_s: float | None
    backward_comm_s: float | None
    overlap_s: float | None
    bucket_nbytes: tuple[int, ...]
    parameter_nbytes: int | None
    num_parameters: int | None
    dtypes: tuple[str, ...]
    fields: dict[str, int | float | str | bool]
