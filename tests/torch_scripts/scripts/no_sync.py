"""Gradient accumulation with no_sync(), checked against what it should save."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 3


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if use_cuda else "gloo")
    device = torch.device(f"cuda:{local_rank}" if use_cuda else "cpu")
    torch.manual_seed(rank)  # DDP hands out rank 0's weights
    model = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 3)).to(
        device
    )
    ddp = DDP(model, device_ids=[local_rank] if use_cuda else None, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=4)
    for _ in range(4):
        for micro in range(ACCUMULATE):
            x, y = torch.randn(5, 12, device=device), torch.randn(5, 3, device=device)
            last = micro == ACCUMULATE - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                (nn.functional.mse_loss(ddp(x), y) / ACCUMULATE).backward()
        opt.step()
        sched.step()
        opt.zero_grad()
    state = {k: v.cpu() for k, v in model.state_dict().items()}
    torch.save(state, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
