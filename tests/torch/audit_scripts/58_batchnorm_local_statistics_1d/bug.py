"""Tabular network with normalised hidden layers."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Table(nn.Module):
    def __init__(self, columns=12, hidden=32, depth=2):
        super().__init__()
        widths = [columns] + [hidden] * depth
        self.layers = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:])])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden) for _ in range(depth)])
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.leaky_relu(norm(layer(x)))
        return self.out(x)


def make_data(n=128, columns=12):
    g = torch.Generator().manual_seed(58)
    x = torch.randn(n, columns, generator=g) * torch.logspace(-1, 1, columns)
    return TensorDataset(x, torch.sign(x[:, 2:3]) + 0.3 * x[:, 5:6])


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
    model = DDP(Table())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step == args.steps:
                break
            loss = F.mse_loss(model(x), y)
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
