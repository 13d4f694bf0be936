"""Hinge GAN on small images: two DDP networks, two optimizers, an exponential moving average of the generator."""
import argparse
import copy
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("gan")


@dataclass
class GANConfig:
    z_dim: int = 12
    channels: int = 16
    lr_g: float = 1e-3
    lr_d: float = 2e-3
    betas: tuple = (0.5, 0.99)
    d_steps: int = 1
    ema_decay: float = 0.9


class Rings(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(61)
        yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        centre = 2.5 + 2 * torch.rand(n, 2, 1, 1, generator=g)
        radius = 1 + 2 * torch.rand(n, 1, 1, generator=g)
        distance = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2).sqrt()
        self.images = (2 * torch.exp(-(distance - radius) ** 2) - 1).unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], i


class Generator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        c = cfg.channels
        self.project = nn.Linear(cfg.z_dim, 2 * c * 4)
        self.up1 = nn.Conv2d(2 * c, c, 3, padding=1)
        self.up2 = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, z):
        h = self.project(z).view(len(z), -1, 2, 2)
        h = F.leaky_relu(self.up1(F.interpolate(h, scale_factor=2)), 0.2)
        return torch.tanh(self.up2(F.interpolate(h, scale_factor=2)))


class Discriminator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        c = cfg.channels
        self.conv1 = nn.Conv2d(1, c, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(c, 2 * c, 4, stride=2, padding=1)
        self.out = nn.Linear(2 * c * 4, 1)

    def forward(self, x):
        h = F.leaky_relu(self.conv1(x), 0.2)
        h = F.leaky_relu(self.conv2(h), 0.2)
        return self.out(h.flatten(1)).squeeze(1)


class EMA:
    def __init__(self, module, decay):
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, module):
        for average, value in zip(self.module.parameters(), module.parameters()):
            average.lerp_(value, 1 - self.decay)


def set_requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


class GANTrainer:
    def __init__(self, cfg, args):
        self.cfg, self.args = cfg, args
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.net_g = DDP(Generator(cfg))
        self.net_d = DDP(Discriminator(cfg))
        self.ema = EMA(self.net_g.module, cfg.ema_decay)
        self.opt_g = torch.optim.Adam(self.net_g.parameters(), lr=cfg.lr_g, betas=cfg.betas, eps=1e-6)
        self.opt_d = torch.optim.Adam(self.net_d.parameters(), lr=cfg.lr_d, betas=cfg.betas, eps=1e-6)
        dataset = Rings()
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
        self.loader = DataLoader(dataset, batch_size=args.global_batch // self.world_size, sampler=self.sampler, drop_last=True)
        self.step = 0

    def noise(self, indices, salt):
        rows = []
        for i in indices.tolist():
            g = torch.Generator().manual_seed(self.args.seed * 10_007 + self.step * 503 + 2 * i + salt)
            rows.append(torch.randn(self.cfg.z_dim, generator=g))
        return torch.stack(rows)

    def discriminator_step(self, real, indices):
        with torch.no_grad():
            fake = self.net_g.module(self.noise(indices, 0))
        set_requires_grad(self.net_d, True)
        real_score, fake_score = self.net_d(torch.cat([real, fake])).chunk(2)
        loss = F.relu(1 - real_score).mean() + F.relu(1 + fake_score).mean()
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_step(self, indices):
        set_requires_grad(self.net_d, False)
        fake = self.net_g(self.noise(indices, 1))
        loss = -self.net_d.module(fake).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.ema.update(self.net_g.module)
        return loss.detach()

    def train(self):
        epoch = 0
        while self.step < self.args.steps:
            self.sampler.set_epoch(epoch)
            for real, indices in self.loader:
                for _ in range(self.cfg.d_steps):
                    d_loss = self.discriminator_step(real, indices)
                g_loss = self.generator_step(indices)
                self.step += 1
                if self.step % 5 == 0:
                    losses = torch.stack([d_loss, g_loss])
                    dist.all_reduce(losses)
                    if self.rank == 0:
                        log.info("step %d epoch %d d_loss %.4f g_loss %.4f", self.step, epoch, *(losses / self.world_size).tolist())
                if self.step >= self.args.steps:
                    return
            epoch += 1

    def save(self, path):
        if self.rank == 0:
            state = {}
            for prefix, module in (("g", self.net_g.module), ("d", self.net_d.module), ("ema", self.ema.module)):
                state.update({f"{prefix}.{k}": v for k, v in module.state_dict().items()})
            torch.save(state, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    trainer = GANTrainer(GANConfig(), args)
    trainer.train()
    trainer.save(args.out)
    dist.destroy_process_group()
