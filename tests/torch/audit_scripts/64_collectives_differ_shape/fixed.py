"""Ranking: the area under the curve needs all scores in one place."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(n, seed, dim=9):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    return x, (x[:, 0] + x[:, 1].pow(2) + 0.5 * torch.randn(n, generator=g) > 1).float()


def gather(tensor, world_size):
    longest = torch.tensor(len(tensor))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    tensor = F.pad(tensor, (0, int(longest) - len(tensor)), value=float("nan"))
    parts = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(parts, tensor)
    whole = torch.cat(parts)
    return whole[~whole.isnan()]


@torch.no_grad()
def area(net, x, y, rank, world_size):
    scores = gather(net(x[rank::world_size]).squeeze(1), world_size)
    labels = gather(y[rank::world_size], world_size)
    order = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    return (order > 0).float().mean().item()


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
    train, val = TensorDataset(*make_data(96, 64)), make_data(51, 65)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(9, 24), nn.SiLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                score = area(model.module, *val, rank, world_size)
                if rank == 0:
                    print(f"step {step} val_auc {score:.4f}")
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
