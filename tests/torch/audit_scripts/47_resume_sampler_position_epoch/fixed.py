"""Click prediction; checkpoints are written at the end of an epoch."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Clicks(nn.Module):
    def __init__(self, sizes=(12, 20, 8), dim=4, dense=5):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, dim) for n in sizes])
        self.mlp = nn.Sequential(nn.Linear(dim * len(sizes) + dense, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, sparse, dense):
        columns = [table(sparse[:, k]) for k, table in enumerate(self.tables)]
        return self.mlp(torch.cat([*columns, dense], 1)).squeeze(1)


def make_data(n=80):
    g = torch.Generator().manual_seed(47)
    sparse = torch.stack([torch.randint(0, k, (n,), generator=g) for k in (12, 20, 8)], 1)
    dense = torch.randn(n, 5, generator=g)
    return TensorDataset(sparse, dense, ((sparse[:, 0] % 2 + dense[:, 0] + dense[:, 1]) > 0.5).float())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="a multiple of the steps of an epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10, help="likewise")
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Clicks())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    epoch, step = 0, 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step, epoch = ckpt["step"], ckpt["epoch"]

    while step < args.steps:
        sampler.set_epoch(epoch)
        for sparse, dense, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(sparse, dense), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        if rank == 0 and args.save and (step % args.save_every == 0 or step >= args.steps):
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch, "step": step}, args.save)

    if rank == 0:
        print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
