"""Sequence tagging with a GRU; gradients are averaged by one flat all_reduce."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tagger(nn.Module):
    def __init__(self, vocab=20, dim=16, tags=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, ids):
        h, _ = self.gru(self.embed(ids))
        return self.out(h)


def make_data(n=96, length=12):
    g = torch.Generator().manual_seed(38)
    ids = torch.randint(0, 20, (n, length), generator=g)
    tags = (ids + ids.roll(1, 1)) % 3
    return TensorDataset(ids, tags)


def average(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, part in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(part.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    model = Tagger()
    params = list(model.parameters())
    optimizer = torch.optim.Adam(params, lr=5e-3)

    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for ids, tags in loader:
            if step == args.steps:
                break
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            average(params)
            optimizer.step()
            step += 1
        epoch += 1

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
