"""Embedding model for ratings; a fifth of the table is kept for validation."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


class Factors(nn.Module):
    def __init__(self, users=30, items=40, dim=6):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.bias = nn.Embedding(items, 1)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.bias(i).squeeze(1)


def make_data(n=200):
    g = torch.Generator().manual_seed(33)
    u, i = torch.randint(0, 30, (n,), generator=g), torch.randint(0, 40, (n,), generator=g)
    a, b = torch.randn(30, 3, generator=g), torch.randn(40, 3, generator=g)
    return TensorDataset(u, i, (a[u] * b[i]).sum(1) + 0.1 * torch.randn(n, generator=g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    generator = torch.Generator().manual_seed(args.seed + rank)
    train, val = random_split(data, [160, 40], generator=generator)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, batch_size=40)

    model = DDP(Factors())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for k, (u, i, y) in enumerate(loader):
            if k < skip or step >= args.steps:
                continue
            loss = F.mse_loss(model(u, i), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    with torch.no_grad():
        u, i, y = next(iter(val_loader))
        val_loss = F.mse_loss(model.module(u, i), y)
    if rank == 0:
        print(f"step {step} val_loss {val_loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
