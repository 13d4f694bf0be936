"""RANK PROGRAMS: torch.distributed's shape, on virtual ranks with a virtual clock.

A program that calls ``torch.distributed`` on tensors calls the same functions of this module on
NumPy arrays, and ``compute`` where its device would be busy::

    import numpy as np
    import simdp.distributed as dist

    dist.init_process_group("nccl")
    tensor = np.arange(2) + 1 + 2 * dist.get_rank()
    dist.all_reduce(tensor)
    print(dist.get_rank(), tensor, dist.clock())

``python -m simdp exec program.py --world-size 4`` runs it. Numbers are those of real collectives,
to the bits of their additions; times are those of the cluster's. Calls block, as on a GPU's
streams: collectives of a group run one after the other on its communication stream, beside what
the rank computes and beside other groups, with which they share links.
"""

from simdp.distributed.backends import BACKENDS
from simdp.distributed.collectives import (
    ReduceOp,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from simdp.distributed.computing import clock, compute
from simdp.distributed.groups import (
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    new_group,
)
from simdp.distributed.launch import ProgramResult, launch
from simdp.distributed.messages import irecv, isend, recv, send
from simdp.distributed.work import Work

group = GroupMember
"""Torch's name for the place where ``group.WORLD`` is."""

__all__ = [
    "BACKENDS",
    "GroupMember",
    "ProcessGroup",
    "ProgramResult",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "clock",
    "compute",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_initialized",
    "isend",
    "launch",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]
