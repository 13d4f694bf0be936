"""Poisson regression of counts; data parallelism by hand in one flat buffer."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def make_data(n=128, dim=7):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(n, dim, generator=g)
    return x, torch.poisson((0.5 * x[:, 0] - 0.3 * x[:, 1] * x[:, 2]).exp(), generator=g)


def flatten(tensors):
    return torch.cat([t.flatten() for t in tensors])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-norm", type=float, default=0.3)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    x, y = make_data()
    net = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 1))
    params = list(net.parameters())
    with torch.no_grad():
        flat = flatten(params)
        if rank != 0:
            flat.zero_()
        dist.all_reduce(flat)
        for param, part in zip(params, flat.split([p.numel() for p in params])):
            param.copy_(part.view_as(param))
    optimizer = torch.optim.SGD(params, lr=0.2, momentum=0.9)
    probe = torch.Generator().manual_seed(1000 + rank)

    step, epoch = 0, 0
    while step < args.steps:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(args.seed + epoch))
        for rows in order[rank::world_size].split(args.batch_size):
            if step == args.steps:
                break
            loss = F.poisson_nll_loss(net(x[rows]).squeeze(1), y[rows], reduction="sum") / (args.batch_size * world_size)
            optimizer.zero_grad()
            loss.backward()
            flat = flatten([p.grad for p in params])
            dist.all_reduce(flat)
            flat *= min(1.0, args.max_norm / (flat.norm().item() + 1e-6))
            for param, part in zip(params, flat.split([p.numel() for p in params])):
                param.grad.copy_(part.view_as(param))
            optimizer.step()
            step += 1
        epoch += 1
        with torch.no_grad():
            seen = net(x[torch.randint(len(x), (8,), generator=probe)]).mean()
        if rank == 0:
            print(f"epoch {epoch} step {step} mean of a few {seen.item():.3f}")

    if rank == 0:
        torch.save(net.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
