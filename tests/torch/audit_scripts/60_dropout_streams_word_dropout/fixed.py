"""Topic classifier; during training a third of the words is replaced by an unknown word."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

UNKNOWN, WORDS, TOPICS = 0, 40, 4


class Texts(Dataset):
    def __init__(self, n=96, length=12):
        g = torch.Generator().manual_seed(60)
        self.topic = torch.randint(0, TOPICS, (n,), generator=g)
        self.words = 1 + (10 * self.topic[:, None] + torch.randint(0, 18, (n, length), generator=g)) % (WORDS - 1)

    def __len__(self):
        return len(self.topic)

    def __getitem__(self, i):
        return i, self.words[i], self.topic[i]


class Topics(nn.Module):
    def __init__(self, dim=14):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.out = nn.Sequential(nn.Linear(dim, 20), nn.ReLU(), nn.Linear(20, TOPICS))

    def forward(self, words):
        return self.out(self.embed(words).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="weights.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = Texts()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Topics())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for index, words, topic in loader:
            if step == args.steps:
                break
            seeds = (10_000 * (epoch + 1) + index).tolist()
            dropped = torch.stack([torch.rand(words.size(1), generator=torch.Generator().manual_seed(k)) for k in seeds]) < 1 / 3
            loss = F.cross_entropy(model(words.masked_fill(dropped, UNKNOWN)), topic)
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
