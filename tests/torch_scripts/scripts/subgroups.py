"""Groups of ranks, objects, and every collective once, with what each rank got."""

import os

import torch
import torch.distributed as dist


def main():
    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    got = {}

    objects = [{"lr": 0.1, "layers": [1, 2]}, "text", None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0)
    got["broadcast_object_list"] = objects
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "squares": [i * i for i in range(rank)]})
    got["all_gather_object"] = everyone
    mine = [None]
    parts = [f"for {r}" for r in range(world)] if rank == 1 else None
    dist.scatter_object_list(mine, parts, src=1)
    got["scatter_object_list"] = mine

    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    own = even if rank % 2 == 0 else odd
    x = torch.arange(6, dtype=torch.float32, device=device) * (rank + 1) / 3
    total = x.clone()
    dist.all_reduce(total, group=own)
    got["all_reduce of a half"] = total.cpu()
    most = x.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    got["max"] = most.cpu()
    work = dist.all_reduce(x.clone().mul_(2), async_op=True)
    work.wait()
    got["async"] = work.is_completed()

    pieces = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(pieces, x, group=own)
    got["all_gather"] = [piece.cpu() for piece in pieces]
    whole = torch.empty(world * 6, device=device)
    dist.all_gather_into_tensor(whole, x)
    got["all_gather_into_tensor"] = whole.cpu()
    share = torch.empty(6, device=device)
    dist.reduce_scatter_tensor(share, whole * (rank + 1))
    got["reduce_scatter_tensor"] = share.cpu()
    swapped = torch.empty(8, device=device)
    dist.all_to_all_single(swapped, torch.arange(8.0, device=device) + 10 * rank)
    got["all_to_all_single"] = swapped.cpu()
    root = x.clone()
    dist.reduce(root, dst=2)
    if rank == 2:
        got["reduce"] = root.cpu()
    told = x.clone() if rank == 3 else torch.zeros_like(x)
    dist.broadcast(told, src=3)
    got["broadcast"] = told.cpu()
    received = torch.empty(2, device=device)
    chunks = [torch.full((2,), float(r), device=device) for r in range(world)]
    dist.scatter(received, chunks if rank == 0 else None, src=0)
    got["scatter"] = received.cpu()
    dist.barrier()
    if own is even:
        dist.barrier(group=even)
    got["ranks"] = dist.get_process_group_ranks(own)
    got["rank in group"] = dist.get_rank(own)
    torch.save(got, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
