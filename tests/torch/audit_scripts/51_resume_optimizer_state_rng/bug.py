"""Classifier with dropout; every rank writes its generator beside the checkpoint of rank 0."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(n=112):
    g = torch.Generator().manual_seed(51)
    x = torch.randn(n, 13, generator=g)
    return TensorDataset(x, (x[:, :4].sum(1) * x[:, 4] > 0).long())


def save(folder, rank, step, model, optimizer):
    os.makedirs(folder, exist_ok=True)
    torch.save(torch.get_rng_state(), os.path.join(folder, f"rng_{rank}.pt"))
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(folder, "state.pt"))
    dist.barrier()


def load(folder, rank, model, optimizer):
    state = torch.load(os.path.join(folder, "state.pt"))
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-dir")
    parser.add_argument("--resume-dir")
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True, generator=generator)
    net = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 2))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = load(args.resume_dir, rank, model, optimizer) if args.resume_dir else 0

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    if args.save_dir:
        save(args.save_dir, rank, step, model, optimizer)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
