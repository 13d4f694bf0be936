"""ZeroRedundancyOptimizer: predict masked entries of short sequences."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MASK = 16


class Masked(nn.Module):
    def __init__(self, dim=16, length=9):
        super().__init__()
        self.embed = nn.Embedding(MASK + 1, dim)
        self.mix = nn.Sequential(nn.Linear(length, length), nn.GELU())
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, MASK)

    def forward(self, ids):
        h = self.embed(ids)
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.out(self.norm(h))


def make_data(n=96, length=9):
    g = torch.Generator().manual_seed(49)
    ids = (torch.randint(0, MASK, (n, 1), generator=g) + 2 * torch.arange(length)) % MASK
    place = torch.rand(n, length, generator=g).argsort(1)[:, :3]
    return TensorDataset(ids, place)


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
    model = DDP(Masked())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=5e-3)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (ids, place) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            logits = model(ids.scatter(1, place, MASK))
            chosen = logits.gather(1, place[:, :, None].expand(-1, -1, MASK))
            loss = F.cross_entropy(chosen.flatten(0, 1), ids.gather(1, place).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if args.save and (step % args.save_every == 0 or step == args.steps):
                optimizer.consolidate_state_dict(to=0)
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
