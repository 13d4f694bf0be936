"""Contrastive pairs in float32; a schedule that counts batches of all ranks, as accelerate's do."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(n=96, dim=10):
    g = torch.Generator().manual_seed(6)
    a = torch.randn(n, dim, generator=g)
    positive = torch.arange(n) % 2 == 0
    b = torch.where(positive[:, None], a.roll(1, 1), torch.randn(n, dim, generator=g))
    return TensorDataset(a, b, positive.float())


class Pairs(nn.Module):
    def __init__(self, dim=10):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 5))
        self.right = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 5))

    def forward(self, a, b):
        return (self.left(a) - self.right(b)).pow(2).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--schedule", type=int, default=40, help="optimizer steps until the rate is 0")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Pairs())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmup, total_steps = 4 * world_size, args.schedule * world_size

    def factor(k):
        return min(1.0, (k + world_size) / warmup) * 0.5 * (1 + math.cos(math.pi * k / total_steps))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        scheduler.load_state_dict(ckpt["scheduler"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (a, b, positive) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            distance = model(a, b)
            loss = torch.where(positive > 0, distance, F.relu(3 - distance)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for _ in range(world_size):
                scheduler.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "scheduler": scheduler.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
