"""Who trains on what: DistributedSampler with shuffling, padding, and drop_last."""

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local_rank}" if on_gpu else "cpu"
    torch.manual_seed(2)
    data = TensorDataset(torch.arange(31).float().unsqueeze(1) / 31, torch.randn(31, 1))
    model = torch.nn.Linear(1, 1).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[local_rank] if on_gpu else None
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, nesterov=True, momentum=0.5)
    seen = []
    for drop_last in (False, True):
        sampler = DistributedSampler(data, shuffle=True, seed=12, drop_last=drop_last)
        loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=drop_last)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in loader:
                seen.append((x * 31).round().long().flatten())
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(ddp(x.to(device)), y.to(device)).backward()
                optimizer.step()
    torch.save({"seen": seen, "weight": model.weight.detach().cpu()}, f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
