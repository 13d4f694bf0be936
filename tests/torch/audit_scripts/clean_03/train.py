"""Random crops of unequal length from one text, padded; settings as constants."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, max_iters, seed = 16, 20, 1337
longest, vocab, dim = 18, 26, 20
device_batch = batch_size // int(os.environ.get("WORLD_SIZE", 1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.gru(self.embed(ids))[0])


def make_text(n=3000):
    g = torch.Generator().manual_seed(3)
    return torch.randint(1, 4, (n,), generator=g).cumsum(0) % vocab


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed + rank)
    text = make_text()
    model = DDP(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)

    def get_batch():
        start = torch.randint(len(text) - longest - 1, (batch_size,), generator=generator)
        length = torch.randint(3, longest + 1, (batch_size,), generator=generator)
        mine = slice(rank * device_batch, (rank + 1) * device_batch)
        crops = text[start[mine, None] + torch.arange(longest + 1)]
        inside = torch.arange(longest) < length[mine, None]
        return crops[:, :-1], crops[:, 1:].masked_fill(~inside, -100)

    for it in range(max_iters):
        ids, labels = get_batch()
        tokens = (labels != -100).sum()
        dist.all_reduce(tokens)
        loss = F.cross_entropy(model(ids).transpose(1, 2), labels, ignore_index=-100, reduction="sum")
        optimizer.zero_grad(set_to_none=True)
        (loss * world_size / tokens).backward()
        optimizer.step()
        if rank == 0 and it % 5 == 0:
            print(f"iter {it} tokens {tokens.item()}")

    if rank == 0:
        torch.save(model.module.state_dict(), os.environ.get("OUT", "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
