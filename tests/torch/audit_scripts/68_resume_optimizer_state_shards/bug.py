"""Train a recommender's two-tower ranker with DDP and a sharded Adam (ZeRO stage 1); checkpoints can be continued."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("ranker")


@dataclass
class RankerConfig:
    users: int = 60
    items: int = 80
    dim: int = 16
    hidden: int = 48
    lr: float = 5e-3
    warmup: int = 5
    log_every: int = 5


class Interactions(Dataset):
    def __init__(self, cfg, n=160):
        g = torch.Generator().manual_seed(81)
        self.user = torch.randint(0, cfg.users, (n,), generator=g)
        self.item = torch.randint(0, cfg.items, (n,), generator=g)
        self.context = torch.randn(n, 6, generator=g)
        taste, trait = torch.randn(cfg.users, 4, generator=g), torch.randn(cfg.items, 4, generator=g)
        score = (taste[self.user] * trait[self.item]).sum(1) + self.context[:, 0]
        self.click = (score + 0.3 * torch.randn(n, generator=g) > 0).float()

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.context[i], self.click[i]


class TwoTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        self.context = nn.Linear(6, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(3 * cfg.dim, cfg.hidden), nn.GELU(), nn.LayerNorm(cfg.hidden), nn.Linear(cfg.hidden, cfg.hidden), nn.GELU())
        self.out = nn.Linear(cfg.hidden, 1)

    def forward(self, user, item, context):
        h = torch.cat([self.user(user), self.item(item), self.context(context)], -1)
        return self.out(self.mlp(h)).squeeze(-1)


class CheckpointManager:
    """One file per checkpoint; the optimizer is kept as shards, keyed by the rank that owns them."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def save(self, path, model, optimizer, step):
        if self.rank == 0:
            shards = {self.rank: optimizer.optim.state_dict()}
            state = {"model": model.module.state_dict(), "optimizer_shards": shards, "step": step, "world_size": self.world_size}
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
            log.info("step %d saved %s", step, path)
        dist.barrier()

    def load(self, path, model, optimizer):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["world_size"] != self.world_size:
            raise ValueError(f"checkpoint of {state['world_size']} ranks, running on {self.world_size}")
        model.module.load_state_dict(state["model"])
        shard = state["optimizer_shards"].get(self.rank)
        if shard is not None:
            optimizer.optim.load_state_dict(shard)
        log.info("resumed at step %d from %s", state["step"], path)
        return state["step"]


class Trainer:
    def __init__(self, cfg, args):
        self.cfg, self.args = cfg, args
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        dataset = Interactions(cfg)
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
        self.loader = DataLoader(dataset, batch_size=args.global_batch // self.world_size, sampler=self.sampler, drop_last=True)
        self.model = DDP(TwoTower(cfg))
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.Adam, lr=cfg.lr, eps=1e-6)
        self.checkpoints = CheckpointManager(self.rank, self.world_size)
        self.step = 0
        if args.resume:
            self.step = self.checkpoints.load(args.resume, self.model, self.optimizer)

    def set_lr(self):
        for group in self.optimizer.param_groups:
            group["lr"] = self.cfg.lr * min(1.0, (self.step + 1) / self.cfg.warmup)

    def train_step(self, user, item, context, click):
        self.set_lr()
        loss = F.binary_cross_entropy_with_logits(self.model(user, item, context), click)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def fit(self):
        args = self.args
        while self.step < args.steps:
            epoch, skip = divmod(self.step, len(self.loader))
            self.sampler.set_epoch(epoch)
            for i, batch in enumerate(self.loader):
                if i < skip:
                    continue
                loss = self.train_step(*batch)
                if self.rank == 0 and self.step % self.cfg.log_every == 0:
                    log.info("step %d epoch %d loss %.4f", self.step, epoch, loss.item())
                if args.save and (self.step % args.save_every == 0 or self.step == args.steps):
                    self.checkpoints.save(args.save, self.model, self.optimizer, self.step)
                if self.step >= args.steps:
                    break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    trainer = Trainer(RankerConfig(), args)
    trainer.fit()
    if trainer.rank == 0:
        torch.save(trainer.model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
