"""Next-step model of a driven pendulum: ZeRO, bfloat16 and accumulation."""
import argparse
import hashlib
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def make_data(n=100):
    g = torch.Generator().manual_seed(8)
    angle, speed, push = 6 * torch.rand(n, generator=g), torch.randn(n, generator=g), torch.randn(n, generator=g)
    after = speed + 0.3 * (push - torch.sin(angle))
    return torch.stack([angle.sin(), angle.cos(), speed, push], 1), torch.stack([speed * 0.3, after], 1)


def order(n, seed, epoch, rank, world_size, multiple):
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    g = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
    return torch.randperm(n, generator=g)[: n // multiple * multiple][rank::world_size]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    x, y = make_data()
    per_rank = args.global_batch // world_size
    per_epoch = len(x) // args.global_batch
    model = DDP(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, done = divmod(step, per_epoch)
        rows = order(len(x), args.seed, epoch, rank, world_size, args.global_batch)[done * per_rank : (done + 1) * per_rank]
        parts = rows.split(args.micro_batch)
        optimizer.zero_grad()
        for k, part in enumerate(parts):
            with nullcontext() if k + 1 == len(parts) else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(x[part])
                loss = F.mse_loss(out.float(), y[part], reduction="sum") / (2 * per_rank)
                loss.backward()
        optimizer.step()
        step += 1
        if args.save and (step % args.save_every == 0 or step == args.steps):
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.5f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
