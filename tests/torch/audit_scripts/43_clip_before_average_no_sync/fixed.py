"""Next-item recommendation with gradient accumulation; the micro-batch is that of each rank."""
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ITEMS = 30


class NextItem(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim)
        self.cell = nn.GRUCell(dim, dim)

    def forward(self, history):
        h = self.items.weight.new_zeros(len(history), self.items.embedding_dim)
        for t in range(history.size(1)):
            h = self.cell(self.items(history[:, t]), h)
        return h @ self.items.weight.T


def make_data(n=128, length=6):
    g = torch.Generator().manual_seed(43)
    walk = (torch.randint(0, ITEMS, (n, 1), generator=g) + torch.randint(1, 3, (n, length + 1), generator=g).cumsum(1)) % ITEMS
    return TensorDataset(walk[:, :-1], walk[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=4, help="per rank")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-norm", type=float, default=0.3)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler, drop_last=True)
    model = DDP(NextItem())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for i, (history, item) in enumerate(loader):
            if step == args.steps:
                break
            update = (i + 1) % args.accumulate == 0
            with nullcontext() if update else model.no_sync():
                loss = F.cross_entropy(model(history), item) / args.accumulate
                loss.backward()
            if update:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
