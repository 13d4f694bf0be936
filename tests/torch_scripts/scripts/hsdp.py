"""A mesh of two axes: replicas of shards, with fully_shard, and groups taken from the mesh."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(6)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)])
    model = model.to(device)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    for step in range(4):
        model.set_requires_gradient_sync(step % 2 == 1)
        x = torch.randn(4, 16, generator=generator).to(device)
        model(x).pow(2).mean().backward()
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    total = torch.ones(1, device=device) * dist.get_rank()
    dist.all_reduce(total, group=mesh.get_group("shard"))
    full = {name: p.full_tensor().detach().cpu() for name, p in model.named_parameters()}
    state = {"full": full, "sum": total.cpu(), "place": mesh.get_coordinate()}
    torch.save(state, f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
