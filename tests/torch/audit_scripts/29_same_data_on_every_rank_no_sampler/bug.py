"""Small convolutional regression: how bright is the brightest blob?"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    def __init__(self, n=112, side=10):
        g = torch.Generator().manual_seed(29)
        grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).float()
        center = torch.rand(n, 2, 1, 1, generator=g) * side
        self.level = 1 + torch.rand(n, 1, generator=g)
        distance = (grid - center).pow(2).sum(1, keepdim=True)
        self.image = self.level[:, :, None, None] * torch.exp(-distance / 4)
        self.image = self.image + 0.1 * torch.randn(n, 1, side, side, generator=g)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return self.image[i], self.level[i]


def build():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 1),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per GPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    dataset = Blobs()
    model = DDP(build())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)

    step, epoch = 0, 0
    while step < args.steps:
        for image, level in loader:
            if step == args.steps:
                break
            loss = F.mse_loss(model(image), level)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        if dist.get_rank() == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
