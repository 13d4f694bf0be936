"""A DataLoader with worker processes, a collate function, and seeds per worker and rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info


class Noisy(Dataset):
    """Every sample gets noise from the worker's own generator."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        assert get_worker_info() is not None
        return torch.full((3,), index / 24) + 0.01 * torch.randn(3), float(index % 3)


def collate(samples):
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.tensor(ys).unsqueeze(1)


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    torch.manual_seed(13)
    model = nn.Linear(3, 1).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    torch.manual_seed(1000 + rank)
    dataset = Noisy()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(
        dataset, batch_size=4, sampler=sampler, num_workers=2, collate_fn=collate, pin_memory=on_gpu
    )
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(x.to(device)), y.to(device)).backward()
            optimizer.step()
    torch.save(model.weight.detach().cpu(), f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
