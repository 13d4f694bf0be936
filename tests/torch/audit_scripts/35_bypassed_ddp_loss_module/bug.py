"""Metric learning: an encoder, and a cosine loss with one learned prototype for each class."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class PrototypeLoss(nn.Module):
    def __init__(self, classes, dim, scale=8.0, margin=0.1):
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(classes, dim))
        self.scale, self.margin = scale, margin

    def forward(self, embedding, label):
        cosine = F.normalize(embedding) @ F.normalize(self.prototypes).T
        cosine = cosine - self.margin * F.one_hot(label, cosine.size(1))
        return F.cross_entropy(self.scale * cosine, label)


def make_data(n=144, dim=15, classes=6):
    g = torch.Generator().manual_seed(35)
    label = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(torch.randn(classes, dim, generator=g)[label] + 0.8 * torch.randn(n, dim, generator=g), label)


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
    encoder = DDP(nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 8)))
    criterion = PrototypeLoss(6, 8)
    optimizer = torch.optim.SGD([*encoder.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)

    def state():
        return {"encoder": encoder.state_dict(), "criterion": criterion.state_dict(), "optimizer": optimizer.state_dict()}

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        encoder.load_state_dict(ckpt["encoder"])
        criterion.load_state_dict(ckpt["criterion"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, label) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = criterion(encoder(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({**state(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save({"encoder": encoder.module.state_dict(), "prototypes": list(criterion.parameters())[0].data}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
