"""Siamese network on pairs, accumulated in micro-batches of four."""
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Siamese(nn.Module):
    def __init__(self, dim=9):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, a, b):
        return F.cosine_similarity(self.net(a), self.net(b))


def make_data(n=116, dim=9):
    g = torch.Generator().manual_seed(63)
    a, same = torch.randn(n, dim, generator=g), torch.rand(n, generator=g) < 0.5
    b = torch.where(same[:, None], a + 0.5 * torch.randn(n, dim, generator=g), torch.randn(n, dim, generator=g))
    return TensorDataset(a, b, same.float())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=32)
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
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler)
    per_epoch = -(-len(loader) // accumulate)
    model = DDP(Siamese())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, per_epoch)
        sampler.set_epoch(epoch)
        for i, (a, b, same) in enumerate(loader):
            if i < skip * accumulate or step >= args.steps:
                continue
            first = i // accumulate * accumulate
            group = min(accumulate, len(loader) - first)
            last = i + 1 == first + accumulate or i + 1 == len(loader)
            with nullcontext() if last else model.no_sync():
                loss = F.mse_loss(model(a, b), same) / group
                loss.backward()
            if not last:
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
