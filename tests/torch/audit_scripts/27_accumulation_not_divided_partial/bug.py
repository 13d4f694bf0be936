"""Spiral classification with gradient accumulation; the last group of an epoch may be short."""
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def spirals(n=100, arms=3):
    g = torch.Generator().manual_seed(27)
    arm = torch.arange(n) % arms
    t = torch.rand(n, generator=g) * 3
    angle = 2 * t + 2 * torch.pi * arm / arms + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(torch.stack([t * angle.cos(), t * angle.sin()], 1), arm)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    accumulate = args.global_batch // (args.micro_batch * world_size)
    torch.manual_seed(args.seed)
    data = spirals()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler)
    per_epoch = -(-len(loader) // accumulate)
    model = DDP(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, per_epoch)
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < skip * accumulate or step >= args.steps:
                continue
            update = (i + 1) % accumulate == 0 or i + 1 == len(loader)
            with nullcontext() if update else model.no_sync():
                loss = F.cross_entropy(model(x), y) / accumulate
                loss.backward()
            if not update:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
