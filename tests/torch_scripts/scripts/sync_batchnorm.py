"""SyncBatchNorm under DDP, converted from a network with plain batch norm. For GPUs alone."""

import os

import torch
import torch.distributed as dist
from torch import nn

torch.set_default_dtype(torch.float64)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
    )
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda()
    ddp = nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(31)
    world, rank = dist.get_world_size(), dist.get_rank()
    for _ in range(4):
        x = torch.randn(4 * world, 2, 4, 4, generator=generator)[rank::world].cuda()
        y = torch.randint(0, 3, (4 * world,), generator=generator)[rank::world].cuda()
        opt.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        opt.step()
    if rank == 0:
        torch.save({k: v.cpu() for k, v in net.state_dict().items()}, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
