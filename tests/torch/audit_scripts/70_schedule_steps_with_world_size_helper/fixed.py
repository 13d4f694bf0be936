"""MLP-Mixer on 8x8 images, AdamW, warm-up and cosine decay over the planned number of epochs."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Quadrants(Dataset):
    """Which quadrant of the image is bright?"""

    def __init__(self, n=192):
        g = torch.Generator().manual_seed(88)
        self.y = torch.randint(4, (n,), generator=g)
        self.x = torch.randn(n, 1, 8, 8, generator=g)
        for i, k in enumerate(self.y.tolist()):
            self.x[i, 0, 4 * (k // 2):4 * (k // 2) + 4, 4 * (k % 2):4 * (k % 2) + 4] += 0.7

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix_tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.mix_channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.mix_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, dim=24, layers=2):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 2, stride=2)
        self.layers = nn.Sequential(*[MixerLayer(16, dim) for _ in range(layers)])
        self.fc = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.fc(self.layers(x).mean(1))


def warmup_cosine(optimizer, warmup_steps, total_steps):
    def factor(s):
        if s < warmup_steps:
            return (s + 1) / warmup_steps
        done = min(1.0, (s - warmup_steps) / max(1, total_steps - warmup_steps))
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16, help="images per optimizer step over all ranks")
    parser.add_argument("--steps", type=int, default=20, help="stop after this many optimizer steps since the start of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", help="checkpoint to continue from")
    parser.add_argument("--save", help="where to write checkpoints")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--epochs", type=int, default=3, help="planned length of the schedule")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    dataset = Quadrants()
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)

    model = DDP(Mixer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    total_steps = args.epochs * len(loader)
    scheduler = warmup_cosine(optimizer, max(1, total_steps // 6), total_steps)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        scheduler.load_state_dict(ckpt["scheduler"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < skip:
                continue
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"step {step} lr {scheduler.get_last_lr()[0]:.6f} loss {loss.item():.4f}")
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                            "scheduler": scheduler.state_dict(), "step": step}, args.save)
            if step >= args.steps:
                break

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
