"""Stream of lines, read like a file, into a bag-of-characters classifier."""
import os
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 8))
MAX_STEPS = 18
WIDTH = 10


def read_lines(n=400):
    g = torch.Generator().manual_seed(30)
    for _ in range(n):
        kind = int(torch.randint(0, 3, (1,), generator=g))
        line = torch.randint(8 * kind, 8 * kind + 14, (WIDTH,), generator=g)
        yield line, kind


class Lines(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        yield from islice(read_lines(), self.rank, None, self.world_size)


class Bag(nn.Module):
    def __init__(self, vocab=30, dim=12, kinds=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3)
        self.out = nn.Linear(dim, kinds)

    def forward(self, line):
        h = torch.relu(self.conv(self.embed(line).transpose(1, 2)))
        return self.out(h.mean(2))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30)
    loader = DataLoader(Lines(rank, world_size), batch_size=BATCH_SIZE)
    model = DDP(Bag())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()

    for step, (line, kind) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = criterion(model(line), kind)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step == MAX_STEPS:
            break

    if rank == 0:
        torch.save(model.module.state_dict(), os.environ.get("OUT", "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
