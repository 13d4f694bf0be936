"""Endless stream of readings with a state, as StatefulDataLoader's; forecasts by a dilated convolution."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Readings(IterableDataset):
    def __init__(self, rank, world_size, seed):
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.position = 0

    def record(self, k):
        g = torch.Generator().manual_seed(100_000 * self.seed + k)
        t = torch.arange(25) + 20 * torch.rand(1, generator=g)
        series = torch.sin(t / 3) + torch.rand(1, generator=g) * torch.cos(t / 1.7) + 0.1 * torch.randn(25, generator=g)
        return series[None, :24], series[24:]

    def __iter__(self):
        while True:
            self.position += 1
            yield self.record((self.position - 1) * self.world_size + self.rank)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def build():
    return nn.Sequential(
        nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, dilation=2), nn.ReLU(),
        nn.Conv1d(8, 8, 3, dilation=4), nn.ReLU(), nn.Flatten(), nn.Linear(80, 1),
    )


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
    stream = Readings(rank, world_size, args.seed)
    loader = DataLoader(stream, batch_size=args.global_batch // world_size)
    model = DDP(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    batches = iter(loader)
    while step < args.steps:
        x, y = next(batches)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream.state_dict()}
            torch.save({**state, "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
