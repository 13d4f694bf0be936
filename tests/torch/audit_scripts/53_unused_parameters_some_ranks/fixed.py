"""Two tasks share a body; each sample belongs to one of them and goes through its head only."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoTasks(nn.Module):
    def __init__(self, dim=10, hidden=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.ELU())
        self.heads = nn.ModuleList([nn.Linear(hidden, 1), nn.Sequential(nn.Linear(hidden, 8), nn.ELU(), nn.Linear(8, 1))])

    def forward(self, x, task, y):
        h = self.body(x)
        total = 0.0
        for k, head in enumerate(self.heads):
            if (task == k).any():
                total = total + F.mse_loss(head(h[task == k]), y[task == k], reduction="sum")
        return total / len(x)


def make_data(n=96, dim=10):
    g = torch.Generator().manual_seed(53)
    x = torch.randn(n, dim, generator=g)
    task = (torch.rand(n, generator=g) < 0.25).long()
    return TensorDataset(x, task, torch.where(task[:, None] == 0, x[:, :1].sin(), x[:, 1:3].prod(1, keepdim=True)))


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
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(TwoTasks(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, task, y) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = model(x, task, y)
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
