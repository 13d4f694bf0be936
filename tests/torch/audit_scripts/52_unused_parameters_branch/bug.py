"""Convolutional classifier with an auxiliary head after the first stage."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoHeads(nn.Module):
    def __init__(self, aux):
        super().__init__()
        self.aux = aux
        self.stage1 = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.aux_head = nn.Linear(96, 4)

    def forward(self, x):
        early = self.stage1(x)
        out = self.head(self.stage2(early).flatten(1))
        return (out, self.aux_head(early.flatten(1))) if self.aux else (out, None)


def make_data(n=96):
    g = torch.Generator().manual_seed(52)
    y = torch.randint(0, 4, (n,), generator=g)
    x = 0.5 * torch.randn(n, 1, 9, 9, generator=g)
    for i, k in enumerate(y.tolist()):
        x[i, 0, 4 * (k // 2) : 4 * (k // 2) + 4, 4 * (k % 2) : 4 * (k % 2) + 4] += 0.8
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--aux", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(TwoHeads(args.aux))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

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
            out, aux = model(x)
            loss = F.cross_entropy(out, y)
            if aux is not None:
                loss = loss + 0.3 * F.cross_entropy(aux, y)
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
