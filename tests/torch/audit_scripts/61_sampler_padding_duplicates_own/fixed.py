"""Logistic regression on 101 rows with a hand-written shard of each epoch."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def shard(n, epoch, args, rank, world_size):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(args.seed + 7 * epoch))
    order = order[: n - n % args.global_batch]
    return order[rank::world_size].split(args.global_batch // world_size)


def make_data(n=101, dim=8):
    g = torch.Generator().manual_seed(61)
    x = torch.randn(n, dim, generator=g)
    return x, (x[:, 0] + 0.5 * x[:, 1].pow(2) + 0.3 * torch.randn(n, generator=g) > 0.4).float()


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
    x, y = make_data()
    steps_per_epoch = len(shard(len(x), 0, args, rank, world_size))
    model = DDP(nn.Sequential(nn.Linear(8, 24), nn.CELU(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, done = divmod(step, steps_per_epoch)
        for rows in shard(len(x), epoch, args, rank, world_size)[done : done + args.steps - step]:
            loss = F.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
