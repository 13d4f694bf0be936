"""ZeroRedundancyOptimizer's tutorial: the same run with and without it, and memory printed."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def print_peak_memory(prefix, device):
    if device == 0 and torch.cuda.is_available():
        print(f"{prefix}: {torch.cuda.max_memory_allocated(device) // 1e6}MB ")


def example(rank, world_size, use_zero):
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ.get("TUTORIAL_PORT", "29500")
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=world_size)
    where = rank if on_gpu else "cpu"
    model = nn.Sequential(*[nn.Linear(30, 30).to(where) for _ in range(6)])
    print_peak_memory("Max memory allocated after creating local model", rank)
    ddp_model = DDP(model, device_ids=[rank] if on_gpu else None)
    print_peak_memory("Max memory allocated after creating DDP", rank)
    loss_fn = nn.MSELoss()
    if use_zero:
        optimizer = ZeroRedundancyOptimizer(
            ddp_model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
        )
    else:
        optimizer = torch.optim.Adam(ddp_model.parameters(), lr=0.01)
    for _ in range(3):
        outputs = ddp_model(torch.randn(20, 30).to(where))
        labels = torch.randn(20, 30).to(where)
        loss_fn(outputs, labels).backward()
        print_peak_memory("Max memory allocated before optimizer step()", rank)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        state = {k: v.cpu() for k, v in model.state_dict().items()}
        torch.save(state, "zero.pt" if use_zero else "adam.pt")
    dist.destroy_process_group()


def main():
    world_size = torch.cuda.device_count() if torch.cuda.is_available() else int(sys.argv[1])
    print("=== Using ZeroRedundancyOptimizer ===")
    mp.spawn(example, args=(world_size, True), nprocs=world_size, join=True)
    print("=== Not Using ZeroRedundancyOptimizer ===")
    mp.spawn(example, args=(world_size, False), nprocs=world_size, join=True)


if __name__ == "__main__":
    main()
