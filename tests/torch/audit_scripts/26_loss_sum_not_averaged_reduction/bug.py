"""Variational autoencoder without sampling noise: reconstruction and penalty are summed."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Coder(nn.Module):
    def __init__(self, dim=16, code=3):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, code))
        self.decode = nn.Sequential(nn.Linear(code, 24), nn.ReLU(), nn.Linear(24, dim))

    def forward(self, x):
        code = self.encode(x)
        return self.decode(code), code


def loss_function(output, code, x):
    reconstruction = F.binary_cross_entropy_with_logits(output, x, reduction="sum")
    penalty = 0.5 * code.pow(2).sum()
    return reconstruction + penalty


def make_data(n=96, dim=16):
    g = torch.Generator().manual_seed(26)
    code = torch.randn(n, 3, generator=g)
    return TensorDataset((code @ torch.randn(3, dim, generator=g) > 0).float())


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
    model = DDP(Coder())
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x,) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = loss_function(*model(x), x)
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
