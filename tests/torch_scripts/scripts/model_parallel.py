"""DDP over model parallelism: two GPUs hold one replica. Written for GPUs and nothing else."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyMpModel(nn.Module):
    def __init__(self, dev0, dev1):
        super().__init__()
        self.dev0 = dev0
        self.dev1 = dev1
        self.net1 = torch.nn.Linear(10, 10).to(dev0)
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(10, 5).to(dev1)

    def forward(self, x):
        x = x.to(self.dev0)
        x = self.relu(self.net1(x))
        x = x.to(self.dev1)
        return self.net2(x)


def demo_model_parallel(rank):
    dev0 = rank * 2
    dev1 = rank * 2 + 1
    torch.manual_seed(rank)
    mp_model = ToyMpModel(torch.device("cuda", dev0), torch.device("cuda", dev1))
    ddp_mp_model = DDP(mp_model)

    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_mp_model.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        outputs = ddp_mp_model(torch.randn(20, 10))
        labels = torch.randn(20, 5).to(torch.device("cuda", dev1))
        loss_fn(outputs, labels).backward()
        optimizer.step()
    if rank == 0:
        torch.save({k: v.cpu() for k, v in mp_model.state_dict().items()}, "weights.pt")


if __name__ == "__main__":
    dist.init_process_group("nccl")
    demo_model_parallel(int(os.environ["RANK"]))
    dist.destroy_process_group()
