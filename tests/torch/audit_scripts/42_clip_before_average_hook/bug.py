"""Character model with an Elman network; gradients are clamped element by element."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHARS = 18


class CharRNN(nn.Module):
    def __init__(self, hidden=28):
        super().__init__()
        self.rnn = nn.RNN(CHARS, hidden, batch_first=True)
        self.out = nn.Linear(hidden, CHARS)

    def forward(self, ids):
        h, _ = self.rnn(F.one_hot(ids, CHARS).float())
        return self.out(h)


def make_data(n=112, length=15):
    g = torch.Generator().manual_seed(42)
    first = torch.randint(0, CHARS, (n, 1), generator=g)
    return TensorDataset((first + torch.arange(length) ** 2) % CHARS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clip", type=float, default=0.01)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = make_data()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = CharRNN()
    for param in model.parameters():
        param.register_hook(lambda grad: grad.clamp(-args.clip, args.clip))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            if step == args.steps:
                break
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
