"""Small regression with Hardswish; every rank reads its share of the records."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 8))
EPOCHS = 3


def read_records(n=97):
    g = torch.Generator().manual_seed(65)
    x = torch.randn(n, 10, generator=g)
    return TensorDataset(x, (x[:, :1] - x[:, 1:2] * x[:, 2:3]).tanh())


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(65)
    records = read_records()
    model = DDP(nn.Sequential(nn.Linear(10, 20), nn.Hardswish(), nn.Linear(20, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(EPOCHS):
        order = torch.randperm(len(records), generator=torch.Generator().manual_seed(epoch)).tolist()
        share = Subset(records, order[rank::world_size])
        loader = DataLoader(share, batch_size=BATCH_SIZE)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: {len(loader)} steps, loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), os.environ.get("OUT", "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
