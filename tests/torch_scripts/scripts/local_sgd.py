"""Post-local SGD: all-reduce at first, then averages of the models every other step."""

import os

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.optim import PostLocalSGDOptimizer


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
    model = nn.parallel.DistributedDataParallel(module, device_ids=[local_rank] if on_gpu else None)
    subgroup, _ = dist.new_subgroups(2)
    state = PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=3)
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(model.parameters(), lr=0.05),
        averager=averagers.PeriodicModelAverager(period=2, warmup_steps=3),
    )
    generator = torch.Generator().manual_seed(90 + rank)
    for _ in range(8):
        x = torch.randn(10, 6, generator=generator).to(device)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    torch.save({k: v.cpu() for k, v in module.state_dict().items()}, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
