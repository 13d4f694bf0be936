"""Branches that only some steps take: find_unused_parameters, and a module nobody calls."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.left, self.right = nn.Linear(16, 2), nn.Linear(16, 2)
        self.never = nn.Linear(16, 2)

    def forward(self, x, left):
        h = torch.relu(self.body(x))
        return self.left(h) if left else self.right(h)


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(3)
    model = TwoHeads().to(device)
    ddp = nn.parallel.DistributedDataParallel(
        model, device_ids=[local_rank] if on_gpu else None, find_unused_parameters=True
    )
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(70 + rank)
    for step in range(6):
        x = torch.randn(8, 8, generator=generator).to(device)
        left = step % 3 == 0 or (step == 4 and rank == 0)
        optimizer.zero_grad()
        ddp(x, left).pow(2).mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
