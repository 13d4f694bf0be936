"""Two losses in turn on a body with a frozen batch norm; rank 0 validates."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, dim=11):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.norm.running_mean.fill_(0.2)
        self.norm.running_var.fill_(1.5)
        self.body = nn.Sequential(nn.Linear(dim, 28), nn.GELU())
        self.label, self.restore = nn.Linear(28, 3), nn.Linear(28, dim)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x, restore=False):
        h = self.body(self.norm(x))
        return self.restore(h) if restore else self.label(h)


def make_data(n, seed, dim=11):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long())


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
    train, val = make_data(96, 5), make_data(50, 6)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Net().train(), find_unused_parameters=True)
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
            restore = step % 2 == 1
            out = model(x, restore)
            loss = F.mse_loss(out, x) if restore else F.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)
            if step % 10 == 0:
                dist.barrier()
                if rank == 0:
                    with torch.no_grad():
                        x, y = val[:]
                        print(f"step {step} val_acc {(model.module.eval()(x).argmax(1) == y).float().mean().item():.3f}")
                    model.module.train()
                dist.barrier()

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
