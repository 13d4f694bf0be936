"""A DDP or FSDP2 job with one cause planted in it, for ``test_planted_gloo``: CASE FOLDER."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CASE, FOLDER = sys.argv[1:3]
RANK = int(os.environ["RANK"])
SLOW = 1  # the rank that is late, where one is
SLEEP = 0.15
STEPS = 8
IS_SLOW = RANK == SLOW


class Samples(torch.utils.data.Dataset):
    """Vectors of ones; the first of a batch comes late on the slow rank of ``loader``."""

    def __len__(self):
        return BATCH * (STEPS + 5)

    def __getitem__(self, i):
        if CASE == "loader" and IS_SLOW and i % BATCH == 0:
            time.sleep(SLEEP)
        return torch.ones(WIDTH)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
        self.dead = nn.Linear(2048, 4096) if CASE == "unused" else None

    def forward(self, x):
        x = self.layers(x)
        if CASE == "tiny":
            total = x[0, 0]
            for _ in range(800):
                total = total + 1.0
            x = x + 0 * total
        return x


WIDTH = {"batch": 1024, "tiny": 64, "item": 64, "small": 32}.get(CASE, 256)
DEPTH = 20 if CASE == "small" else 4
BATCH = (128 if IS_SLOW else 32) * 8 if CASE == "batch" else 32


def wrapped(model):
    if CASE == "small":
        return model
    if CASE != "fsdp2":
        return DistributedDataParallel(model, find_unused_parameters=CASE == "unused")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train():
    torch.manual_seed(0)
    net = Net()
    model = wrapped(net)
    if CASE in ("backward", "fsdp2") and IS_SLOW:
        net.layers[1].register_full_backward_hook(lambda *_: time.sleep(SLEEP))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=BATCH)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=2, active=STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{FOLDER}/rank{RANK}.json"),
        record_shapes=True,
    ) as profiler:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            if CASE == "item":
                for _ in range(200):
                    loss.item()
            loss.backward()
            if CASE == "small":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            if CASE == "pause" and IS_SLOW and number == 7:
                time.sleep(8 * SLEEP)
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
