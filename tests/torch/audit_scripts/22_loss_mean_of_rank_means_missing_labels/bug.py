"""Several assays per molecule, most of them not measured."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(n=128, dim=14, assays=3):
    g = torch.Generator().manual_seed(22)
    x = torch.randn(n, dim, generator=g)
    y = torch.tanh(x @ torch.randn(dim, assays, generator=g) / 3) + 0.1 * torch.randn(n, assays, generator=g)
    unknown = torch.rand(n, assays, generator=g) < torch.rand(n, 1, generator=g)
    return TensorDataset(x, y.masked_fill(unknown, float("nan")))


class Assays(nn.Module):
    def __init__(self, dim=14, assays=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 40), nn.SiLU(), nn.LayerNorm(40), nn.Linear(40, 20), nn.SiLU())
        self.head = nn.Linear(20, assays)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Assays())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step == args.steps:
                break
            known = ~y.isnan()
            error = model(x)[known] - y[known]
            loss = error.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
