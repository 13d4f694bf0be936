"""A pipeline by hand: each rank has a stage, activations and gradients go from rank to rank."""

import os

import torch
import torch.distributed as dist
from torch import nn

MICRO, BATCH, WIDTH = 4, 6, 16


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(60 + rank)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).to(device)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(8)
    for _ in range(3):
        batch = torch.randn(MICRO, BATCH, WIDTH, generator=generator).to(device)
        target = torch.randn(MICRO, BATCH, WIDTH, generator=generator).to(device)
        held = []
        for micro in range(MICRO):
            if rank == 0:
                x = batch[micro]
            else:
                x = torch.empty(BATCH, WIDTH, device=device)
                dist.recv(x, src=rank - 1)
                x.requires_grad_()
            y = stage(x)
            if rank < world - 1:
                dist.send(y.detach(), dst=rank + 1)
            else:
                y = nn.functional.mse_loss(y, target[micro]) / MICRO
            held.append((x, y))
        for x, y in reversed(held):
            if rank == world - 1:
                y.backward()
            else:
                slope = torch.empty_like(y)
                dist.irecv(slope, src=rank + 1).wait()
                y.backward(slope)
            if rank > 0:
                dist.isend(x.grad, dst=rank - 1).wait()
        optimizer.step()
        optimizer.zero_grad()
    around, mine = torch.empty(2, device=device), torch.full((2,), float(rank), device=device)
    ops = [
        dist.P2POp(dist.isend, mine, (rank + 1) % world),
        dist.P2POp(dist.irecv, around, (rank - 1) % world),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    state = {k: v.cpu() for k, v in stage.state_dict().items()}
    torch.save({"stage": state, "around": around.cpu()}, f"stage{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
