"""Causal convolutional language model on sentences of different length, token-weighted loss, accumulated."""
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCAB, PAD = 45, 0


class Sentences(Dataset):
    def __init__(self, n=128):
        g = torch.Generator().manual_seed(610)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(4, 22, (1,), generator=g))
            start, stride = torch.randint(VOCAB, (2,), generator=g)
            self.items.append((start + (stride % 4 + 1) * torch.arange(length)) % (VOCAB - 1) + 1)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class ConvLM(nn.Module):
    def __init__(self, dim=28, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, kernel) for _ in range(2))
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + F.gelu(conv(F.pad(x, (self.kernel - 1, 0))))
        return self.out(x.transpose(1, 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16, help="sentences per optimizer step over all ranks")
    parser.add_argument("--steps", type=int, default=20, help="stop after this many optimizer steps since the start of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", help="checkpoint to continue from")
    parser.add_argument("--save", help="where to write checkpoints")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)

    data = Sentences()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True,
                        collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD))

    net = ConvLM()
    model = DDP(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.05)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        net.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, ids in enumerate(loader):
            if i < skip:
                continue
            tokens = (ids[:, 1:] != PAD).sum()
            dist.all_reduce(tokens)
            optimizer.zero_grad()
            total = 0.0
            parts = ids.split(args.micro_batch)
            for k, part in enumerate(parts):
                with nullcontext() if k + 1 == len(parts) else model.no_sync():
                    loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), ignore_index=PAD, reduction="sum")
                    (loss * world_size / tokens).backward()
                total += loss.detach()
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.4)
            optimizer.step()
            step += 1
            dist.reduce(total, dst=0)
            if rank == 0 and step % 5 == 0:
                print(f"step {step} tokens {tokens.item()} loss {(total / tokens).item():.4f} norm {norm.item():.3f}")
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)
            if step >= args.steps:
                break

    if rank == 0:
        torch.save(net.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
