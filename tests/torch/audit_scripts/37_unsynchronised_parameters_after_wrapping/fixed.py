"""An encoder that gets a head for the task at hand."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.fc = nn.Identity()

    def forward(self, x):
        return self.fc(self.conv(x))


def make_data(n=96, length=16):
    g = torch.Generator().manual_seed(37)
    kind = torch.randint(0, 3, (n,), generator=g)
    t = torch.arange(length) / 3
    wave = torch.stack([torch.sin((kind[:, None] + 1) * t), torch.cos((kind[:, None] + 1) * t)], 1)
    return TensorDataset(wave + 0.5 * torch.randn(n, 2, length, generator=g), kind)


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
    torch.manual_seed(args.seed + 100 * rank)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    encoder = Encoder()
    encoder.fc = nn.Linear(48, 3)
    model = DDP(encoder)
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
        for i, (x, y) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
