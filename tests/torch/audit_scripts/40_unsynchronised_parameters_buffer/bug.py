"""Self-distillation: a student follows a slowly moving teacher, whose outputs are centred."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 6))


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = mlp(), mlp()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(6))

    def forward(self, one, two):
        target = self.teacher(two)
        loss = -(F.softmax((target - self.center) / 0.1, 1) * F.log_softmax(self.student(one) / 0.3, 1)).sum(1).mean()
        mean = target.mean(0)
        self.center = 0.7 * self.center + 0.3 * mean
        return loss

    @torch.no_grad()
    def follow(self, momentum=0.95):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - momentum)


def make_data(n=96):
    g = torch.Generator().manual_seed(40)
    x = torch.randn(4, 12, generator=g)[torch.randint(0, 4, (n,), generator=g)]
    return TensorDataset(x + 0.4 * torch.randn(n, 12, generator=g), x + 0.4 * torch.randn(n, 12, generator=g))


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

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.global_batch // world_size, sampler=sampler, drop_last=True)
    model = DDP(Distiller(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.module.student.parameters(), lr=0.1, momentum=0.9)

    step = 0
    if args.resume:
        ckpt = torch.load(args.resume)
        model.module.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
    while step < args.steps:
        epoch, skip = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (one, two) in enumerate(loader):
            if i < skip or step >= args.steps:
                continue
            loss = model(one, two)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.module.follow()
            step += 1
            if rank == 0 and args.save and (step % args.save_every == 0 or step == args.steps):
                torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)

    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
