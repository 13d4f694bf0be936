"""Training that stops and resumes: rank 0 saves, a barrier, all load with a map_location; random
states per rank; a subgroup of the odd ranks that trains by itself, which even ranks are not in."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PATH = "checkpoint.pth"


def build(device, cuda):
    model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.Tanh(), nn.Linear(12, 1)).to(device)
    ids = [device.index] if cuda else None
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    return ddp, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def train(ddp, optimizer, scheduler, loader, epoch, device):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(x.to(device, non_blocking=True)), y.to(device))
        loss.backward()
        optimizer.step()
    scheduler.step()
    return loss.item()


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 6, generator=generator)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    loader = DataLoader(
        data, 5, sampler=DistributedSampler(data, seed=3), num_workers=2, persistent_workers=True,
        pin_memory=cuda, drop_last=True,
    )  # fmt: skip

    torch.manual_seed(100 + rank)
    parts = build(device, cuda)
    losses = [train(*parts, loader, epoch, device) for epoch in range(2)]
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        ddp, optimizer, scheduler = parts
        saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**saved, "scheduler": scheduler.state_dict(), "rng": states}, PATH)
    dist.barrier()

    ddp, optimizer, scheduler = build(device, cuda)  # with other weights, to be replaced
    where = {"cuda:0": str(device)} if cuda else "cpu"
    found = torch.load(PATH, map_location=where, weights_only=True)
    ddp.module.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])
    torch.set_rng_state(found["rng"][rank].cpu())
    assert all(p.device == device for p in ddp.parameters())
    losses += [train(ddp, optimizer, scheduler, loader, epoch, device) for epoch in (2, 3)]
    dist.barrier()

    odd = dist.new_group([r for r in range(dist.get_world_size()) if r % 2])
    alone = None
    if rank % 2:
        torch.manual_seed(rank)
        small = nn.Linear(6, 1).to(device)
        ids = [local_rank] if cuda else None
        apart = nn.parallel.DistributedDataParallel(small, device_ids=ids, process_group=odd)
        apart(x[rank::4].to(device)).square().mean().backward()
        alone = small.weight.grad.cpu()
        mean = torch.tensor([float(dist.get_rank(odd))], device=device)
        dist.all_reduce(mean, group=odd)
        alone = [alone, mean.cpu(), dist.get_group_rank(odd, rank)]
    else:
        assert dist.get_rank(odd) == -1
    dist.barrier()
    weights = {name: tensor.cpu() for name, tensor in ddp.module.state_dict().items()}
    result = {"weights": weights, "losses": losses, "lr": scheduler.get_last_lr(), "odd": alone}
    torch.save(result, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
