"""Convolutional denoising autoencoder; the noise is drawn anew for each batch."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIZE = 12


class Rings(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(71)
        axis = torch.arange(SIZE).float()
        centre = 3 + 6 * torch.rand(n, 2, generator=g)
        radius = 1.5 + 2.5 * torch.rand(n, generator=g)
        d = ((axis[None, :, None] - centre[:, :1, None]) ** 2 + (axis[None, None, :] - centre[:, 1:, None]) ** 2).sqrt()
        self.images = torch.exp(-(d - radius[:, None, None]) ** 2).unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i]


class Denoiser(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ELU(), nn.Conv2d(width, width, 3, padding=1), nn.ELU())
        self.up = nn.Sequential(nn.ConvTranspose2d(width, width, 2, stride=2), nn.ELU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16, help="images per optimizer step over all ranks")
    parser.add_argument("--steps", type=int, default=20, help="stop after this many optimizer steps since the start of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", help="checkpoint to continue from")
    parser.add_argument("--save", help="where to write checkpoints")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--noise", type=float, default=0.5)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    noise_rng = torch.Generator().manual_seed(args.seed + 1)

    data = Rings()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)

    net = Denoiser()
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        net.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        noise_rng.set_state(ckpt["noise_rng"])
        step = ckpt["step"]
    model = DDP(net)

    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, clean in enumerate(loader):
            if i < skip:
                continue
            noise = torch.randn(args.global_batch, 1, SIZE, SIZE, generator=noise_rng)[rank::world_size]
            loss = F.mse_loss(model(clean + args.noise * noise), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"step {step} mse {loss.item():.5f}")
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                            "noise_rng": noise_rng.get_state()}, args.save)
            if step >= args.steps:
                break

    if rank == 0:
        torch.save(net.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
