"""Mixture of two experts with a learned gate; the rate is raised over the first 200 samples."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 8))
STEPS = 20
WARMUP_SAMPLES = 200
LR = 0.3


class Experts(nn.Module):
    def __init__(self, dim=7, hidden=12):
        super().__init__()
        self.gate = nn.Linear(dim, 2)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, 1)) for _ in range(2)])

    def forward(self, x):
        weight = self.gate(x).softmax(1)
        return sum(weight[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


def make_data(n=160):
    g = torch.Generator().manual_seed(46)
    x = torch.randn(n, 7, generator=g)
    return TensorDataset(x, torch.where(x[:, :1] > 0, x[:, 1:2].sin(), x[:, 2:3].abs()))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(46)
    data = make_data()
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler, drop_last=True)
    model = DDP(Experts())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    step = seen = 0
    for epoch in range(STEPS // len(loader) + 1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step == STEPS:
                break
            seen += len(x)
            for group in optimizer.param_groups:
                group["lr"] = LR * min(1.0, seen / WARMUP_SAMPLES)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} seen {seen} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), os.environ.get("OUT", "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
