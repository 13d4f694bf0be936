"""accelerate: distil a large random network into a small one."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


def make_data(n=96):
    g = torch.Generator().manual_seed(45)
    x = torch.randn(n, 9, generator=g)
    hidden = torch.tanh(x @ torch.randn(9, 64, generator=g))
    return TensorDataset(x, hidden @ torch.randn(64, 3, generator=g) / 8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per process")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(args.seed)
    model = nn.Sequential(nn.Linear(9, 20), nn.Softplus(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = DataLoader(make_data(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=args.steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step = 0
    while step < args.steps:
        for x, y in loader:
            if step == args.steps:
                break
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            step += 1
        accelerator.print(f"step {step} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.5f}")

    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), args.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
