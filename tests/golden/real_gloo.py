"""Writes real_gloo.json: what processes of real torch have after reductions and other calls.

Reductions are there as a hash of all ranks' bytes. ``python tests/golden/real_gloo.py`` on a
machine with torch; the file here is torch 2.13.0's (CPU).
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np

WORLD_SIZES = (2, 3, 4, 5)
SIZES = (1, 7, 1000, 20011, 300007)
OPS = {
    "float32": ("SUM", "AVG", "PRODUCT", "MIN", "MAX"),
    "float64": ("SUM", "PRODUCT"),
    "int32": ("SUM", "PRODUCT", "BAND", "BOR", "BXOR"),
}
CALLS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")


def cases():
    """What is called: calls, dtypes, elements that each rank gets, operations."""
    for dtype, ops in OPS.items():
        for size in SIZES if dtype == "float32" else SIZES[:-1]:
            for op in ops:
                yield from ((call, dtype, size, op) for call in CALLS)


def numbers(dtype, size, rank):
    """What a rank begins with."""
    values = np.random.default_rng([size, rank]).standard_normal(size)
    return (values * 1000 if dtype == "int32" else values).astype(dtype)


def play(dist, wrap, rank, world_size):
    """Run every case; yield what a rank has of each, None where torch leaves it open.

    Parameters
    ----------
    dist : module
        torch.distributed, or what stands for it.
    wrap : callable
        Makes a tensor that shares an array's memory.
    """
    for call, dtype, size, op in cases():
        how = {"op": getattr(dist.ReduceOp, op)}
        if call.startswith("reduce_scatter"):
            mine, whole = np.zeros(size, dtype), numbers(dtype, size * world_size, rank)
            pieces = [wrap(piece) for piece in np.split(whole, world_size)]
            given = pieces if call == "reduce_scatter" else wrap(whole)
            getattr(dist, call)(wrap(mine), given, **how)
        else:
            mine = numbers(dtype, size, rank)
            if call == "reduce":
                how["dst"] = size % world_size
            getattr(dist, call)(wrap(mine), **how)
        yield None if call == "reduce" and rank != how["dst"] else mine


def digests(found):
    """One hash for each case, of the bytes of all ranks that have some."""
    for case, kept in zip(cases(), zip(*found, strict=True), strict=True):
        data = b"".join(array.tobytes() for array in kept if array is not None)
        yield "-".join(map(str, case)), hashlib.sha256(data).hexdigest()[:16]


def calls(dist, wrap, rank, n):
    """Make the other calls; yield a name and what a rank then has, as JSON has it."""
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    yield "all_gather_object", objects
    objects = [None] * n if rank == n - 1 else None
    dist.gather_object(["from", rank], objects, dst=n - 1)
    yield "gather_object", objects
    objects = [None, "kept"]
    dist.scatter_object_list(objects, [[i] * i for i in range(n)] if rank == 1 else None, src=1)
    yield "scatter_object_list", objects
    objects = ["a", rank, None]
    dist.broadcast_object_list(objects, src=1)
    yield "broadcast_object_list", objects
    objects = [None, None]
    if rank == 0:
        dist.send_object_list([1, "two"], dst=1)
    elif rank == 1:
        yield "recv_object_list", [dist.recv_object_list(objects, src=0), objects]
    got = np.zeros(3)
    around = [
        dist.P2POp(dist.isend, wrap(np.full(3, float(rank))), (rank + 1) % n),
        dist.P2POp(dist.irecv, wrap(got), group_peer=(rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    yield "batch_isend_irecv", got.tolist()
    work = dist.all_reduce(wrap(np.full(2, 1.0 + rank)), async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    yield "get_future", [doubled.wait().tolist(), work.is_success(), work.is_completed()]
    dist.monitored_barrier()
    yield from groups(dist, wrap, rank, n)


def groups(dist, wrap, rank, n):
    """The same for what makes groups and asks for them."""
    world = dist.group.WORLD
    yield "WORLD", [world.rank(), world.size(), world == dist.GroupMember.WORLD]
    group = dist.new_group(list(range(n - 1, 0, -1)))
    if rank:
        ranks = dist.get_process_group_ranks(group)
        there, back = dist.get_global_rank(group, 0), dist.get_group_rank(group, n - 1)
        copy, total = np.full(1, float(rank)), np.full(1, float(rank))
        dist.broadcast(wrap(copy), group=group, group_src=n - 2)
        dist.reduce(wrap(total), group=group, group_dst=0)
        yield "group", [ranks, there, back, copy.tolist(), total.tolist() if rank == 1 else None]
    mine, made = dist.new_subgroups(group_size=1)
    yield "new_subgroups", [dist.get_process_group_ranks(mine), len(made), made.index(mine)]
    lists = [[0], list(range(1, n))]
    mine, made = dist.new_subgroups_by_enumeration(lists)
    yield "new_subgroups_by_enumeration", [dist.get_process_group_ranks(mine), len(made)]
    shape = (n // 2, 2) if n % 2 == 0 else (1, n)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    part = mesh["tp"]
    yield "mesh", [list(mesh.shape), mesh.ndim, mesh.size(), mesh.size(1), mesh.mesh.tolist()]
    yield "coordinate", [list(mesh.get_coordinate()), mesh.get_local_rank("dp"), mesh.get_rank()]
    of_each = [dist.get_process_group_ranks(group) for group in mesh.get_all_groups()]
    yield "part", [part.mesh.tolist(), part.get_local_rank(), list(part.mesh_dim_names), of_each]
    yield "refused", [_refuses(call, mesh, dist, wrap) for call in REFUSED]


REFUSED = (
    lambda mesh, dist, one: mesh.get_group(),
    lambda mesh, dist, one: mesh["pp"],
    lambda mesh, dist, one: dist.broadcast(one),
    lambda mesh, dist, one: dist.broadcast(one, 0, group_src=0),
    lambda mesh, dist, one: dist.all_reduce(one, op=dist.ReduceOp.BAND),
    lambda mesh, dist, one: dist.new_subgroups(7),
    lambda mesh, dist, one: dist.new_subgroups_by_enumeration([]),
    lambda mesh, dist, one: dist.batch_isend_irecv([one]),
    lambda mesh, dist, one: dist.scatter_object_list([], [0]),
    lambda mesh, dist, one: dist.monitored_barrier(dist.GroupMember.NON_GROUP_MEMBER),
    lambda mesh, dist, one: dist.get_world_size(dist.GroupMember.NON_GROUP_MEMBER),
)
"""What torch refuses on every rank; the last two it does not."""


def _refuses(call, mesh, dist, wrap):
    try:
        call(mesh, dist, wrap(np.zeros(1)))
    except Exception:
        return True
    return False


def _process(rank, world_size, folder):
    import torch
    import torch.distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    found = play(torch.distributed, torch.from_numpy, rank, world_size)
    called = list(calls(torch.distributed, torch.from_numpy, rank, world_size))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(called))
    kept = {f"{i:06}": array for i, array in enumerate(found) if array is not None}
    np.savez(Path(folder) / f"{rank}.npz", **kept)
    torch.distributed.destroy_process_group()


def main():
    """Start the processes, and write the file beside this one."""
    import torch
    from torch.multiprocessing import spawn

    found = {}
    for world_size in WORLD_SIZES:
        with tempfile.TemporaryDirectory() as folder:
            spawn(_process, (world_size, folder), nprocs=world_size)
            ranks = [np.load(Path(folder) / f"{rank}.npz") for rank in range(world_size)]
            keys = [f"{i:06}" for i in range(len(list(cases())))]
            called = [
                json.loads((Path(folder) / f"{rank}.json").read_text())
                for rank in range(world_size)
            ]
            arrays = [[rank.get(key) for key in keys] for rank in ranks]
        found[f"w{world_size}"] = {"bits": dict(digests(arrays)), "calls": called}
    text = {"torch": torch.__version__, "by": Path(__file__).name, **found}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in text.items())
    Path(__file__).with_suffix(".json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
