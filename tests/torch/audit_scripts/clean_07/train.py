"""FSDP2 on an endless stream: a gated network learns modular sums."""
import argparse
import os
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

MOD = 7


class Sums(IterableDataset):
    def __init__(self, rank, world_size, skip):
        self.rank, self.world_size, self.skip = rank, world_size, skip

    def __iter__(self):
        g = torch.Generator().manual_seed(7)
        every = iter(lambda: torch.randint(0, MOD, (3,), generator=g), None)
        for abc in islice(every, self.skip + self.rank, None, self.world_size):
            yield abc, abc.sum() % MOD


class Gated(nn.Module):
    def __init__(self, dim=20):
        super().__init__()
        self.embed = nn.Embedding(MOD, dim)
        self.gate, self.value = nn.Linear(3 * dim, 32, bias=False), nn.Linear(3 * dim, 32, bias=False)
        self.out = nn.Linear(32, MOD)

    def forward(self, abc):
        h = self.embed(abc).flatten(1)
        return self.out(F.silu(self.gate(h)) * self.value(h))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint")
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Gated()
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    step = 0
    path = f"{args.checkpoint}.{rank}"
    if args.checkpoint and os.path.exists(path):
        ckpt = torch.load(path, weights_only=False)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    stream = Sums(rank, world_size, step * args.batch_size * world_size)
    for abc, y in islice(DataLoader(stream, batch_size=args.batch_size), args.steps - step):
        loss = F.cross_entropy(model(abc), y)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).full_tensor()
        optimizer.step()
        step += 1
        if rank == 0 and step % 5 == 0:
            print(f"step {step} norm {norm.item():.4f}")
    if args.checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)

    state = {name: param.full_tensor() for name, param in model.named_parameters()}
    if rank == 0:
        torch.save(state, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
