"""Mean teacher: few labels, and consistency with an averaged copy on all samples."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class EMA:
    def __init__(self, net, decay=0.8):
        self.net, self.decay = copy.deepcopy(net).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, net):
        for average, param in zip(self.net.parameters(), net.parameters()):
            average.mul_(self.decay).add_(param, alpha=1 - self.decay)


def make_data(n=96, dim=8):
    g = torch.Generator().manual_seed(39)
    x = torch.randn(n, dim, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long(), (torch.rand(n, generator=g) < 0.4).float())


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
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    model = DDP(net)
    ema = EMA(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        net.load_state_dict(ckpt["model"])
        ema.net.load_state_dict(ckpt["ema"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y, labelled) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            logits = model(x)
            target = ema.net(x).softmax(1)
            supervised = (labelled * F.cross_entropy(logits, y, reduction="none")).mean()
            loss = supervised + (logits.softmax(1) - target).pow(2).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(net)
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                state = {"model": net.state_dict(), "ema": ema.net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save({"model": net.state_dict(), "ema": ema.net.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
