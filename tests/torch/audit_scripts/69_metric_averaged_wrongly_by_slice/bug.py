"""Sleep-stage scoring from short epochs of a recording; whole recordings are scored together at validation time."""
import argparse
import json
import logging
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STAGES = ("wake", "n1", "n2", "n3", "rem")


@dataclass
class Recording:
    name: str
    signal: torch.Tensor
    stages: torch.Tensor


def make_recordings(sizes, seed):
    g = torch.Generator().manual_seed(seed)
    templates = torch.randn(len(STAGES), 2, 32, generator=torch.Generator().manual_seed(8))
    recordings = []
    for k, size in enumerate(sizes):
        stages = torch.randint(0, len(STAGES), (size,), generator=g)
        noise = 1.2 + 1.5 * float(torch.rand((), generator=g))
        recordings.append(Recording(f"night-{k:02d}", templates[stages] + noise * torch.randn(size, 2, 32, generator=g), stages))
    return recordings


class EpochDataset(Dataset):
    def __init__(self, recordings):
        self.signal = torch.cat([r.signal for r in recordings])
        self.stages = torch.cat([r.stages for r in recordings])

    def __len__(self):
        return len(self.stages)

    def __getitem__(self, i):
        return self.signal[i], self.stages[i]


class StageNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.conv1 = nn.Conv1d(2, width, 5, padding=2)
        self.conv2 = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.norm = nn.GroupNorm(4, width)
        self.head = nn.Linear(width * 16, len(STAGES))

    def forward(self, x):
        h = F.gelu(self.conv1(x))
        h = F.gelu(self.norm(self.conv2(h)))
        return self.head(h.flatten(1))


class AverageMeter:
    """Keeps sums of named values; synchronize() makes them the same on every rank."""

    def __init__(self):
        self.sums = defaultdict(float)
        self.counts = defaultdict(int)

    def update(self, name, value, n=1):
        self.sums[name] += float(value) * n
        self.counts[name] += n

    def average(self, name):
        return self.sums[name] / max(1, self.counts[name])

    def synchronize(self):
        names = sorted(self.sums)
        means = torch.tensor([self.average(n) for n in names], dtype=torch.float64)
        dist.all_reduce(means)
        means /= dist.get_world_size()
        return dict(zip(names, means.tolist()))


class Scorer:
    """Scores whole recordings, dealt out to the ranks in turn."""

    def __init__(self, recordings):
        self.mine = recordings[dist.get_rank()::dist.get_world_size()]

    @torch.no_grad()
    def __call__(self, model):
        model.eval()
        meter = AverageMeter()
        for recording in self.mine:
            logits = model(recording.signal)
            meter.update("loss", F.cross_entropy(logits, recording.stages), len(recording.stages))
            meter.update("accuracy", (logits.argmax(1) == recording.stages).float().mean(), len(recording.stages))
        model.train()
        return meter.synchronize()


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        dataset = EpochDataset(make_recordings([20, 16, 36, 24], seed=101))
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
        self.loader = DataLoader(dataset, batch_size=args.global_batch // self.world_size, sampler=self.sampler, drop_last=True)
        self.scorer = Scorer(make_recordings([90, 11, 37, 8, 25, 60, 14, 45, 19], seed=102))
        self.net = StageNet()
        self.model = DDP(self.net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, eps=1e-6)
        self.best = 0.0

    def validate(self, step):
        scores = self.scorer(self.net)
        self.best = max(self.best, scores["accuracy"])
        if self.rank == 0:
            print(json.dumps({"step": step, "val_acc": round(scores["accuracy"], 6), "val_loss": round(scores["loss"], 6), "best": round(self.best, 6)}), flush=True)

    def fit(self):
        step, epoch = 0, 0
        while step < self.args.steps:
            self.sampler.set_epoch(epoch)
            for signal, stages in self.loader:
                loss = F.cross_entropy(self.model(signal), stages)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                if self.rank == 0 and step % 5 == 0:
                    logging.info("step %d epoch %d loss %.4f", step, epoch, loss.item())
                if step % self.args.eval_every == 0:
                    self.validate(step)
                if step >= self.args.steps:
                    return
            epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--eval-every", type=int, default=10)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    trainer = Trainer(args)
    trainer.fit()
    if trainer.rank == 0:
        torch.save(trainer.net.state_dict(), args.out)
    dist.destroy_process_group()
