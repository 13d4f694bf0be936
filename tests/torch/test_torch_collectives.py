"""Collectives, messages, groups and stores on virtual ranks: as real gloo leaves them."""

import pytest

torch = pytest.importorskip("torch")

from simdp.errors import DeadlockError, ProgramError  # noqa: E402

PREAMBLE = """
import sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(rank)
found = {}


def drawn(*shape, dtype=torch.float32):
    return (3 * torch.randn(*shape, generator=generator)).to(dtype)


def keep(name, *tensors):
    for number, tensor in enumerate(tensors):
        found[f"{name}.{number}"] = tensor.detach().clone()
"""

EVERYTHING = """
Op = dist.ReduceOp
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
    for op in (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *([Op.AVG] if dtype.is_floating_point else [])):
        label = f"{dtype}.{op}"
        x = drawn(world, 7, dtype=dtype)
        dist.all_reduce(x, op)
        y = drawn(5, dtype=dtype)
        dist.reduce(y, 1, op)
        out, pieces = drawn(7, dtype=dtype), drawn(world, 7, dtype=dtype)
        dist.reduce_scatter_tensor(out, pieces.view(-1), op)
        last = drawn(7, dtype=dtype)
        dist.reduce_scatter(last, list(pieces), op)
        keep(label, x, y if rank == 1 else x, out, last)
for op in (Op.BAND, Op.BOR, Op.BXOR):
    x = torch.randint(1000, (9,), generator=generator)
    dist.all_reduce(x, op)
    keep(str(op), x)
for size in (1, 1000, 100_003):
    x = drawn(size)
    work = dist.all_reduce(x, async_op=True)
    keep(f"async.{size}", work.get_future().wait()[0])

x = drawn(4, 3)
dist.broadcast(x, 2)
channels_last = drawn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
dist.broadcast(channels_last, 0)
gathered = [torch.empty(2, 2) for _ in range(world)]
dist.all_gather(gathered, drawn(2, 2))
whole = torch.empty(world * 2, 2)
dist.all_gather_into_tensor(whole, drawn(2, 2))
at_root = [torch.empty(3) for _ in range(world)] if rank == 0 else None
dist.gather(drawn(3), at_root, 0)
piece = torch.empty(3)
dist.scatter(piece, [drawn(3) for _ in range(world)] if rank == 1 else None, 1)
swapped = [torch.empty(4) for _ in range(world)]
dist.all_to_all(swapped, [drawn(4) for peer in range(world)])
single = torch.empty(world, 2)
dist.all_to_all_single(single, drawn(world, 2))
uneven = torch.empty(world * (rank + 1))
sizes = [peer + 1 for peer in range(world)]
dist.all_to_all_single(uneven, drawn(sum(sizes)), [rank + 1] * world, sizes)
dist.barrier()
dist.monitored_barrier()
keep("moved", x, channels_last, *gathered, whole, *(at_root or []), piece, *swapped, single, uneven)

with dist._coalescing_manager():
    both = drawn(4), drawn(5)
    for tensor in both:
        dist.all_reduce(tensor)
keep("coalesced", *both)
keep("functional", functional.all_reduce(drawn(4), "sum", dist.group.WORLD) + 0,
     functional.all_gather_tensor(drawn(2), 0, dist.group.WORLD) + 0,
     functional.reduce_scatter_tensor(drawn(world * 2), "sum", 0, dist.group.WORLD) + 0)

after, before = (rank + 1) % world, (rank - 1) % world
received, more = torch.empty(4), torch.empty(2, 2)
if rank == 0:
    dist.send(drawn(4), after)
    dist.recv(received, before)
else:
    assert dist.recv(received) == before
    dist.send(drawn(4), after)
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, drawn(2, 2), after), dist.P2POp(dist.irecv, more, before)]
):
    work.wait()
keep("messages", received, more)

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
sent = [rank, "root"] if rank == 0 else [None, None]
dist.broadcast_object_list(sent, 0)
mine = [None]
dist.scatter_object_list(mine, [f"for {peer}" for peer in range(world)] if rank == 0 else None, 0)
assert [each["rank"] for each in objects] == list(range(world))
assert sent == [0, "root"] and mine == [f"for {rank}"]

pair = dist.new_group([0, 2])
if rank in (0, 2):
    x = drawn(6)
    dist.all_reduce(x, group=pair)
    keep("pair", x, torch.tensor([dist.get_rank(pair), dist.get_world_size(pair)]))
    assert dist.get_process_group_ranks(pair) == [0, 2]
else:
    assert pair is dist.GroupMember.NON_GROUP_MEMBER
mesh = dist.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
x = drawn(3)
dist.all_reduce(x, group=mesh.get_group("all"))
keep("mesh", x)

store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("key", "value")
assert store.get("key") == b"value"
store.add("count", rank)
dist.barrier()
assert int(store.get("count")) == sum(range(world))
torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
"""


def test_all_that_is_left_is_what_real_gloo_leaves(same):
    result, found = same(PREAMBLE + EVERYTHING, 3)
    assert len(found) > 100
    names = {name.partition(" ")[0] for name in result.trace.names}
    assert {"all_reduce", "reduce_scatter", "all_to_all_single", "barrier"} <= names


def test_two_and_four_ranks_have_real_gloos_bits(same):
    lines = """
for size in (1, 5, 63, 4096, 70_001):
    x = drawn(size)
    dist.all_reduce(x)
    keep(str(size), x)
torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
"""
    for world_size in (2, 4):
        same(PREAMBLE + lines, world_size)


def wrong(virtually, text, error=ProgramError, world_size=2):
    lines = "import torch\nimport torch.distributed as dist\n" + text
    with pytest.raises(error) as caught:
        virtually(lines, world_size)
    return str(caught.value)


JOIN = 'dist.init_process_group("gloo")\nrank = dist.get_rank()\n'


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        (
            "dist.all_reduce(torch.ones(2 + rank))",
            ProgramError,
            "call 2 of group default differs: rank 0 calls all_reduce(float32[2], op=SUM), but "
            "rank 1 calls all_reduce(float32[3], op=SUM); let all ranks",
        ),
        (
            "if rank == 0:\n    dist.all_reduce(torch.ones(2))",
            DeadlockError,
            "rank 0 waits in all_reduce(float32[2], op=SUM) of group default, call 2, for rank 1; "
            "rank 1 has ended",
        ),
        (
            "if rank == 0:\n    dist.recv(torch.ones(2), 1)",
            DeadlockError,
            "rank 0 waits in recv(float32[2], src=1) of group default for rank 1 to send",
        ),
        (
            "dist.distributed_c10d._get_default_store().get('never')",
            DeadlockError,
            "rank 0 waits in store.get('default_pg/0//never') at env:// for it to be set",
        ),
        (
            "work = dist.all_reduce(torch.ones(2), async_op=True)\nif rank:\n    work.wait()\n"
            "else:\n    while not work.is_completed():\n        pass",
            ProgramError,
            "was called 100,000 times at the same instant; virtual time passes in what computes",
        ),
        (
            "dist.all_reduce(torch.ones(4, 4)[:, 1])",
            ProgramError,
            "ValueError: all_reduce: Tensors must be contiguous",
        ),
        (
            "dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)",
            ProgramError,
            "all_reduce: ReduceOp.BAND of torch.float32 is not there; use another dtype",
        ),
    ],
)
def test_what_cannot_be_is_told_with_the_ranks(virtually, text, error, told):
    assert told in wrong(virtually, JOIN + text, error)


def test_a_group_must_be_the_programs_own(virtually):
    assert (
        "init_process_group: world_size is 3, but the script runs on 2 ranks; start it with "
        "--nproc-per-node 3, or leave world_size out."
    ) in wrong(virtually, 'dist.init_process_group("gloo", rank=0, world_size=3)')
    told = wrong(virtually, 'dist.init_process_group("gloo", rank=0, world_size=2)')
    assert told.startswith("rank 1, ")
    assert "init_process_group: rank is 0, but this is rank 1; leave rank out" in told
    assert "init_process_group: tcp://localhost:1 needs rank as well; give both." in wrong(
        virtually, 'dist.init_process_group("gloo", init_method="tcp://localhost:1", world_size=2)'
    )
    assert "Distributed package doesn't have UCC built in" in wrong(
        virtually, 'dist.init_process_group("ucc")'
    )
