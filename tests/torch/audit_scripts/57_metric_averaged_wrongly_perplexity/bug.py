"""Bigram language model with a small context mixer; perplexity on sentences of many lengths."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB = 24


class Mixer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.now, self.before = nn.Embedding(VOCAB, dim), nn.Embedding(VOCAB, dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, VOCAB))

    def forward(self, ids):
        previous = F.pad(ids[:, :-1], (1, 0))
        return self.out(self.now(ids) + self.before(previous))


def sentences(n, seed, length=12):
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(0, VOCAB, (n, 1), generator=g)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    ids = (first + stride * torch.arange(length)) % VOCAB
    ids[::4] = torch.randint(0, VOCAB, ids[::4].shape, generator=g)
    return ids, torch.randint(3, length + 1, (n,), generator=g)


@torch.no_grad()
def perplexity(net, ids, lengths, rank, world_size):
    ids, lengths = ids[rank::world_size], lengths[rank::world_size]
    loss = F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    mask = torch.arange(1, ids.size(1)) < lengths[:, None]
    mean = (loss * mask).sum() / mask.sum()
    ppl = mean.exp()
    dist.all_reduce(ppl)
    return (ppl / world_size).item()


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
    train, val = TensorDataset(sentences(96, 57)[0]), sentences(30, 58)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Mixer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (ids,) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                ppl = perplexity(model.module, *val, rank, world_size)
                if rank == 0:
                    print(f"step {step} val_ppl {ppl:.4f}")
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)
    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
