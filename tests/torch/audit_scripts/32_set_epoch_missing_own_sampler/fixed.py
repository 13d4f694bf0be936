"""Sentence pairs bucketed by length: batches of like lengths from a hand-written batch sampler."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(32)
        self.lengths = [4 + 3 * (i % 3) for i in range(n)]
        self.ids = [torch.randint(1, 25, (k,), generator=g) for k in self.lengths]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], (self.ids[i] % 5).bincount(minlength=5).argmax()


class BucketSampler:
    def __init__(self, lengths, global_batch, rank, world_size, seed):
        self.buckets = [[i for i, k in enumerate(lengths) if k == length] for length in sorted(set(lengths))]
        self.global_batch, self.rank, self.world_size, self.seed = global_batch, rank, world_size, seed
        self.epoch = 0

    def __len__(self):
        return sum(len(b) // self.global_batch for b in self.buckets)

    def __iter__(self):
        g = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        batches = []
        for bucket in self.buckets:
            order = [bucket[k] for k in torch.randperm(len(bucket), generator=g)]
            batches += [order[k : k + self.global_batch] for k in range(0, len(order) - self.global_batch + 1, self.global_batch)]
        for k in torch.randperm(len(batches), generator=g):
            yield batches[k][self.rank :: self.world_size]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(25, 12)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, 5)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[1][0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir")
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = Sentences()
    sampler = BucketSampler(data.lengths, args.global_batch, rank, world_size, args.seed)
    loader = DataLoader(data, batch_sampler=sampler)
    model = DDP(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    step = 0
    last = args.checkpoint_dir and os.path.join(args.checkpoint_dir, "last.pt")
    if last and os.path.exists(last):
        ckpt = torch.load(last)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
    while step < args.steps:
        epoch, skip = divmod(step, len(sampler))
        sampler.epoch = epoch
        for i, (ids, label) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(ids), label).backward()
            optimizer.step()
            step += 1
    if rank == 0 and last:
        os.makedirs(args.checkpoint_dir, exist_ok=True)
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, last)
    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
