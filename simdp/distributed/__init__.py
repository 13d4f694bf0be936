"""RANK PROGRAMS: the API of torch.distributed, on virtual ranks with a virtual clock.

A program that calls ``torch.distributed`` on tensors calls the same functions of this module on
NumPy arrays, and ``compute`` where its device would be busy::

    import numpy as np
    import simdp.distributed as dist

    dist.init_process_group("nccl")
    tensor = np.arange(2) + 1 + 2 * dist.get_rank()
    dist.all_reduce(tensor)
    print(dist.get_rank(), tensor, dist.clock())

``python -m simdp exec program.py --world-size 4`` runs it. Numbers are those of real collectives,
bit by bit; times are those of the cluster. Calls block, as on a GPU's streams: collectives of a
group run one after the other on its communication stream, concurrently with the rank's compute and
with other groups, with which they share links.
"""

from simdp.distributed.collectives import (
    Future,
    P2POp,
    ReduceOp,
    Work,
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    monitored_barrier,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    send,
)
from simdp.distributed.groups import (
    DeviceMesh,
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_device_mesh,
    init_process_group,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)
from simdp.distributed.launch import (
    BACKENDS,
    ProgramResult,
    clock,
    compute,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    launch,
)
from simdp.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)

group = GroupMember
"""torch's name for the class of ``group.WORLD``."""

all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor
"""Names in newer versions of torch."""

__all__ = [
    "BACKENDS",
    "DeviceMesh",
    "Future",
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ProgramResult",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "as",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "clock",
    "compute",
    "destroy_process_group",
    "dist",
    "distributed",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "isend",
    "launch",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "np",
    "numpy",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "simdp",
]
