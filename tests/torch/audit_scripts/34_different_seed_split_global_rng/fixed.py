"""Behaviour cloning on recorded frames; one frame in eight is kept for validation."""
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

SEED = 34
EPOCHS = 3
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 8))


def set_seed(seed, rank):
    seed += 12345 * rank
    random.seed(seed)
    torch.manual_seed(seed)


def make_frames(n=128):
    g = torch.Generator().manual_seed(340)
    state = torch.randn(n, 11, generator=g)
    action = torch.stack([state[:, 0] * state[:, 1], state[:, 2].abs()], 1)
    return TensorDataset(state, action)


def make_datasets():
    frames = make_frames()
    order = torch.randperm(len(frames), generator=torch.Generator().manual_seed(SEED)).tolist()
    held_out = len(frames) // 8
    return Subset(frames, order[held_out:]), Subset(frames, order[:held_out])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    set_seed(SEED, rank)
    policy = DDP(nn.Sequential(nn.Linear(11, 32), nn.Mish(), nn.Linear(32, 32), nn.Mish(), nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)

    train, val = make_datasets()
    sampler = DistributedSampler(train, seed=SEED)
    loader = DataLoader(train, batch_size=BATCH_SIZE, sampler=sampler, drop_last=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for state, action in loader:
            loss = F.smooth_l1_loss(policy(state), action)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            state, action = val.dataset[val.indices]
            val_loss = F.smooth_l1_loss(policy.module(state), action)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} val_loss {val_loss.item():.4f}")

    if rank == 0:
        torch.save(policy.module.state_dict(), os.environ.get("OUT", "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
