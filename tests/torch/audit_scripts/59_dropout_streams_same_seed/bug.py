"""Small vision transformer on 8x8 images with dropout."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DROPOUT = 0.2


class Patches(nn.Module):
    def __init__(self, dim=16, classes=3):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, stride=2)
        self.query = nn.Parameter(0.1 * torch.randn(1, 1, dim))
        self.key = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(32, dim))
        self.drop = nn.Dropout(DROPOUT)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.drop(self.embed(x).flatten(2).transpose(1, 2))
        h = h + self.mlp(h)
        weight = (self.query * self.key(h)).sum(2).softmax(1)
        return self.out((weight[:, :, None] * h).sum(1))


def make_data(n=96):
    g = torch.Generator().manual_seed(59)
    y = torch.randint(0, 3, (n,), generator=g)
    x = 0.4 * torch.randn(n, 1, 8, 8, generator=g)
    x[y == 0, :, :4, :4] += 1
    x[y == 1, :, 4:, 4:] -= 1
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Patches())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step == args.steps:
                break
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
