"""Uneven inputs: rank r has 3 + r batches, and the join context waits for the last one."""

import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

NUM_INPUTS = 3


def worker(rank, local_rank, device):
    torch.manual_seed(9)
    ids = [local_rank] if device.type == "cuda" else None
    model = DDP(torch.nn.Linear(4, 2).to(device), device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = [torch.full((1, 4), float(i + rank)) / 4 for i in range(NUM_INPUTS + rank)]
    seen = 0
    with model.join():
        for x in inputs:
            seen += 1
            model(x.to(device)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"Rank {rank} has exhausted all {seen} of its inputs!")
    torch.save({k: v.cpu() for k, v in model.module.state_dict().items()}, f"joined{rank}.pt")


def with_zero(rank, local_rank, device):
    torch.manual_seed(10)
    ids = [local_rank] if device.type == "cuda" else None
    model = DDP(torch.nn.Linear(4, 3).to(device), device_ids=ids)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    inputs = [torch.ones(2, 4) * (i + 1) / 3 for i in range(NUM_INPUTS + rank)]
    with Join([model, optimizer]):
        for x in inputs:
            model(x.to(device)).sum().backward()
            optimizer.step()
    torch.save({k: v.cpu() for k, v in model.module.state_dict().items()}, f"zero{rank}.pt")


def by_those_left(rank, local_rank, device):
    torch.manual_seed(11)
    ids = [local_rank] if device.type == "cuda" else None
    model = DDP(torch.nn.Linear(4, 3).to(device), device_ids=ids)
    inputs = [torch.ones(2, 4) * (i + 1 + rank) / 3 for i in range(NUM_INPUTS + rank)]
    with Join([model], divide_by_initial_world_size=False):
        for x in inputs:
            model(x.to(device)).sum().backward()
    torch.save({k: v.grad.cpu() for k, v in model.module.named_parameters()}, f"left{rank}.pt")


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    worker(rank, local_rank, device)
    with_zero(rank, local_rank, device)
    by_those_left(rank, local_rank, device)
    dist.destroy_process_group()
