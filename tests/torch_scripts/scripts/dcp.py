"""torch.distributed.checkpoint: save sharded, train on, load, and train the same again."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def steps(model, optimizer, generator, device, count):
    for _ in range(count):
        x = torch.randn(4, 10, generator=generator).to(device)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 10)).to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    steps(model, optimizer, generator, device, 2)

    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id="checkpoint")
    here = generator.get_state()
    steps(model, optimizer, generator, device, 3)
    ended = [p.full_tensor().detach().cpu() for p in model.parameters()]

    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": state}, checkpoint_id="checkpoint")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    generator.set_state(here)
    steps(model, optimizer, generator, device, 3)
    again = [p.full_tensor().detach().cpu() for p in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(ended, again, strict=True))
    if dist.get_rank() == 0:
        torch.save(again, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
