"""DDP communication hooks: gradients in 16 bits, PowerSGD, and a hook of one's own."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.nn.parallel import DistributedDataParallel as DDP


def scaled_allreduce(state, bucket):
    """A hook as users write them: average, then take a little off."""
    group = state if state is not None else dist.group.WORLD
    tensor = bucket.buffer().div_(group.size())
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].mul_(0.99))


def train(name, register, device, local_rank, bucket_cap_mb=0.004):
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4)
    )
    ids = [local_rank] if device == "cuda" else None
    ddp = DDP(model.to(device), device_ids=ids, bucket_cap_mb=bucket_cap_mb)
    register(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(50 + dist.get_rank())
    for _ in range(4):
        x = torch.randn(8, 24, generator=generator).to(device)
        y = torch.randint(0, 4, (8,), generator=generator).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({k: v.cpu() for k, v in model.state_dict().items()}, f"{name}.pt")


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    local_rank = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    hooks = {
        "fp16": lambda ddp: ddp.register_comm_hook(None, default.fp16_compress_hook),
        "bf16": lambda ddp: ddp.register_comm_hook(None, default.bf16_compress_hook),
        "allreduce": lambda ddp: ddp.register_comm_hook(None, default.allreduce_hook),
        "own": lambda ddp: ddp.register_comm_hook(None, scaled_allreduce),
    }
    for name, register in hooks.items():
        train(name, register, device, local_rank)
    state = powerSGD.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=2,
        min_compression_rate=0.5,
    )
    hook = powerSGD.powerSGD_hook
    train("powersgd", lambda d: d.register_comm_hook(state, hook), device, local_rank, 25)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
