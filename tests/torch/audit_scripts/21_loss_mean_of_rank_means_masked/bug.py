"""Train a one-block transformer on sequences whose prompt part carries no loss."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB, LENGTH = 32, 20


def make_data(n=96):
    g = torch.Generator().manual_seed(21)
    start = torch.randint(0, VOCAB, (n, 1), generator=g)
    stride = torch.randint(1, 5, (n, 1), generator=g)
    ids = (start + stride * torch.arange(LENGTH)) % VOCAB
    prompt = torch.randint(2, LENGTH - 1, (n, 1), generator=g)
    mask = (torch.arange(LENGTH) >= prompt).float()
    return TensorDataset(ids, mask)


class Block(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        self.attention = nn.MultiheadAttention(dim, 4, bias=False, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        h = self.embed(ids) + self.position[: ids.size(1)]
        causal = torch.triu(torch.ones(ids.size(1), ids.size(1), dtype=torch.bool), 1)
        a, _ = self.attention(h, h, h, attn_mask=causal, need_weights=False)
        h = self.norm(h + a)
        return self.head(h + self.mlp(h))


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
    model = DDP(Block())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (ids, mask) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            logits = model(ids[:, :-1])
            per_token = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
            mask = mask[:, 1:]
            loss = (per_token * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
