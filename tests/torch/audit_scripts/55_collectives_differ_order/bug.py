"""Three regression tasks; the loss of each is weighted by its share of the mean over the ranks."""
import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TASKS = ("depth", "angle", "speed")


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.Tanh())
        self.heads = nn.ModuleDict({name: nn.Linear(32, 1) for name in TASKS})

    def forward(self, x):
        h = self.body(x)
        return {name: head(h).squeeze(1) for name, head in self.heads.items()}


def make_data(n=96):
    g = torch.Generator().manual_seed(55)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, torch.stack([x[:, 0].exp(), x[:, 1].sin(), 3 * x[:, 2] * x[:, 3]], 1))


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
    model = DDP(MultiTask())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

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
            out = model(x)
            order = random.Random(1000 * step + rank).sample(TASKS, len(TASKS))
            losses, levels = {}, {}
            for name in order:
                losses[name] = F.mse_loss(out[name], y[:, TASKS.index(name)])
                levels[name] = losses[name].detach().clone()
                dist.all_reduce(levels[name])
            total = sum(levels[name] for name in TASKS)
            loss = sum(levels[name] / total * losses[name] for name in TASKS)
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
