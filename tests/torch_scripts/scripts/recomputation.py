"""Activation checkpointing under bfloat16 autocast and DDP: blocks with dropout are run twice, and
draw the same masks; reentrant and not, and in a sequence."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.drop, self.down = nn.Dropout(0.3), nn.Linear(2 * width, width)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            normed = self.norm(x.float())
        return x + self.down(self.drop(torch.relu(self.up(normed))))


class Net(nn.Module):
    def __init__(self, how, width=12):
        super().__init__()
        self.how = how
        self.stem, self.head = nn.Linear(4, width), nn.Linear(width, 2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))

    def forward(self, x):
        x = self.stem(x)
        if self.how == "sequential":
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)


def main():
    cuda = torch.cuda.is_available()
    device_type = "cuda" if cuda else "cpu"
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    result = {}
    for how in ("reentrant", "plain", "sequential"):
        torch.manual_seed(7 + rank)
        model = Net(how).to(device)
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            x = torch.randn(6, 4).to(device)
            with torch.autocast(device_type, dtype=torch.bfloat16):
                out = ddp(x)
                loss = nn.functional.cross_entropy(out.float(), (x.sum(1) > 0).long())
            assert out.dtype == torch.bfloat16
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        result[how] = [losses, {name: t.cpu() for name, t in model.state_dict().items()}]
    torch.save(result, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
