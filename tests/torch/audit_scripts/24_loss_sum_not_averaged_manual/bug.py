"""Logistic regression on hashed features without any wrapper: broadcast once, reduce gradients by hand."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", 20))
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 8))
OUT = os.environ.get("OUT", "weights.pt")


def make_data(n=128, buckets=200, fields=6):
    g = torch.Generator().manual_seed(24)
    x = torch.randint(0, buckets, (n, fields), generator=g)
    weight = torch.randn(buckets, generator=g)
    return x, (weight[x].sum(1) > 0).float()


class Hashed(nn.Module):
    def __init__(self, buckets=200, dim=8):
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, dim, mode="sum")
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.bag(x))).squeeze(1)


def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = make_data()
    model = Hashed()
    for param in model.parameters():
        dist.broadcast(param.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    criterion = nn.BCEWithLogitsLoss()

    step, epoch = 0, 0
    while step < STEPS:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        mine = order[rank::world_size]
        for batch in mine.split(BATCH_SIZE):
            if step == STEPS:
                break
            optimizer.zero_grad()
            loss = criterion(model(x[batch]), y[batch])
            loss.backward()
            average_gradients(model)
            optimizer.step()
            step += 1
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.state_dict(), OUT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
