"""DDP's own tutorial: mp.spawn, a basic loop, and a checkpoint that every rank reads again."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ.get("TUTORIAL_PORT", "12355")
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
    else:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


def device_of(rank):
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def wrapped(rank):
    device = device_of(rank)
    model = ToyModel().to(device)
    return DDP(model, device_ids=[rank] if device.type == "cuda" else None), device


def demo_basic(rank, world_size):
    print(f"Running basic DDP example on rank {rank}.")
    setup(rank, world_size)
    torch.manual_seed(100 + rank)
    ddp_model, device = wrapped(rank)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
    for _ in range(5):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10).to(device))
        labels = torch.randn(20, 5).to(device)
        loss_fn(outputs, labels).backward()
        optimizer.step()
    if rank == 0:
        torch.save({k: v.cpu() for k, v in ddp_model.module.state_dict().items()}, "basic.pt")
    cleanup()


def demo_checkpoint(rank, world_size):
    print(f"Running DDP checkpoint example on rank {rank}.")
    setup(rank, world_size)
    torch.manual_seed(7 * rank)
    ddp_model, device = wrapped(rank)
    path = os.path.join(tempfile.gettempdir(), f"model.{os.environ['MASTER_PORT']}.checkpoint")
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    where = f"cuda:{rank}" if device.type == "cuda" else "cpu"
    ddp_model.load_state_dict(torch.load(path, map_location=where, weights_only=True))
    loss_fn = nn.MSELoss()
    optimizer = optim.Adam(ddp_model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10).to(device))
        loss_fn(outputs, torch.randn(20, 5).to(device)).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
        torch.save({k: v.cpu() for k, v in ddp_model.module.state_dict().items()}, "loaded.pt")
    cleanup()


def run_demo(demo_fn, world_size):
    mp.spawn(demo_fn, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else int(sys.argv[1])
    run_demo(demo_basic, n_gpus)
    run_demo(demo_checkpoint, n_gpus)
